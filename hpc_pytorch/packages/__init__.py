"""What is installed and its files: lock files and wheels, new versions, ROCm's pairs, environments, containers and images."""
