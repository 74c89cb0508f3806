"""Packages and their files: lock files, wheels' tags, which ROCm goes with which PyTorch, an index of one's own."""
