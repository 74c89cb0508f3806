__global__ void twice(float* values) {
  values[threadIdx.x] *= 2;
}
