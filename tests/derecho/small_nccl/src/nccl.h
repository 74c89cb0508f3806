#define NCCL_MAJOR 9
#define NCCL_MINOR 9
#define NCCL_PATCH 9
#ifdef __cplusplus
extern "C"
#endif
int ncclGetVersion(int* version);
