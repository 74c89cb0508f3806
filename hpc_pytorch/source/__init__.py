"""Building PyTorch from source: options by version, the contract with CMake, interrupted builds."""
