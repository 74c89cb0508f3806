#include "nccl.h"

__global__ void add(float* to, const float* from) {
  to[threadIdx.x] += from[threadIdx.x];
}

extern "C" int ncclGetVersion(int* version) {
  *version = NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH;
  return 0;
}
