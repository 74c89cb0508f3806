/* The interface that NCCL loads, as far as a look at it goes: a name, and an initialisation that logs the version. */
#include <rdma/fabric.h>

typedef void (*logger)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

static int initialise(logger log) {
  log(3, 1, __FILE__, __LINE__, "NET/OFI Using aws-ofi-nccl 9.9.9");
  return FI_MAJOR(fi_version()) < 1;
}

const struct {
  const char* name;
  int (*initialise)(logger);
} ncclNetPlugin_v6 = {"AWS Libfabric", initialise};
