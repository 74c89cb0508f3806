/* May a GPU pointer be handed to the MPI library of this process?
 *
 * The one home of that decision, plain C so that PyTorch's own ProcessGroupMPI.cpp can include it as well. It is
 * taken at run time: a program built on MPICH may run on Cray's library, and an Open MPI may have been built without
 * the accelerator it meets. The order:
 *
 *   1. TORCH_MPI_GPU_AWARE=0 or 1 in the environment: whoever sets it knows better;
 *   2. MPI not initialised, or finalised already: no (MPICH's query ends the process then);
 *   3. Open MPI: its query for the platform;
 *   4. Cray MPICH: MPICH_GPU_SUPPORT_ENABLED (MPI_Init has stopped by now if the transport library was missing);
 *   5. MPICH from 3.4 on: MPIX_GPU_query_support;
 *   6. anything else: no.
 */
#ifndef TORCH_MPI_GPU_AWARE_H
#define TORCH_MPI_GPU_AWARE_H

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

enum gpu_platform { GPU_PLATFORM_CUDA, GPU_PLATFORM_HIP, GPU_PLATFORM_OTHER };

static inline int gpu_aware_variable_is_one(const char* name) {
  const char* value = getenv(name);
  return value != NULL && strcmp(value, "1") == 0;
}

static inline int gpu_aware_mpi_running(void) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised && !finalised;
}

static inline int gpu_aware_library_is(const char* name) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  return MPI_Get_library_version(version, &length) == MPI_SUCCESS && strstr(version, name) != NULL;
}

static inline int gpu_aware_query(enum gpu_platform platform) {
  int supported = 0;
#if defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT)
  if (platform == GPU_PLATFORM_CUDA)
    supported = MPIX_Query_cuda_support();
#elif defined(MPIX_GPU_SUPPORT_CUDA)
  if (platform == GPU_PLATFORM_CUDA)
    MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported);
#endif
#if defined(OPEN_MPI) && defined(MPIX_ROCM_AWARE_SUPPORT)
  if (platform == GPU_PLATFORM_HIP)
    supported = MPIX_Query_rocm_support();
#elif defined(MPIX_GPU_SUPPORT_HIP)
  if (platform == GPU_PLATFORM_HIP)
    MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &supported);
#endif
  (void)platform;
  return supported;
}

static inline int gpu_aware(enum gpu_platform platform) {
  if (getenv("TORCH_MPI_GPU_AWARE") != NULL)
    return gpu_aware_variable_is_one("TORCH_MPI_GPU_AWARE");
  if (!gpu_aware_mpi_running())
    return 0;
#if !defined(OPEN_MPI)
  if (gpu_aware_library_is("CRAY MPICH"))
    return gpu_aware_variable_is_one("MPICH_GPU_SUPPORT_ENABLED");
#endif
  return gpu_aware_query(platform);
}

#endif
