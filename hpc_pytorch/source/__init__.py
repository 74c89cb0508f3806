"""Building PyTorch from source: options by version, the contract with CMake, what was built."""
