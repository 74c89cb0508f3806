"""As in PyTorch, the options besides USE_…, BUILD_… and CMAKE_… that reach CMake."""
OPTIONS = ['BLAS', ]
