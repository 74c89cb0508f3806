"""What is installed: lock files, wheels, virtual environments, images; new versions of them; `module help`."""
