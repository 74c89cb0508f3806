"""What the hooks do: early checks, a site's rules, locks of killed installations, provenance, what to type."""
