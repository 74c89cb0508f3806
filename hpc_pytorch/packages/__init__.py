"""What is installed: lock files and wheels, new versions, ROCm's pairs, environments, containers and images."""
