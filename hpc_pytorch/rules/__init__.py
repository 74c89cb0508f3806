"""
What the hooks do: early checks, what an installation needs, a site's rules, locks of killed installations, provenance,
what to type.
"""
