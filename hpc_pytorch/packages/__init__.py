"""Packages: lock files, wheels' tags, pip, Python environments, an index of one's own, errors that many have met."""
