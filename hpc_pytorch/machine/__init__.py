"""
The machine: ./eb's launcher, systems as data, the survey and drafts of new systems, batch systems, modules tools and
module files, the distribution's packages.
"""
