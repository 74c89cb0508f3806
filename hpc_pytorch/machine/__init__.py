"""The machine: ./eb's launcher, systems as data, batch systems, the distribution's packages."""
