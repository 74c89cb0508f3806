"""Building PyTorch from source: options by version, git, the contract with CMake, wheels that were built."""
