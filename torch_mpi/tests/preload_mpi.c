/* Loaded before the MPI library: what it can do at the wrong moment. $MPI_DOES says which; always where it is
 * going to write. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int asked(const char* what) {
  const char* does = getenv("MPI_DOES");
  return does && strcmp(does, what) == 0;
}

/* The second one fails on rank 1. */
int MPI_Ireduce_scatter_block(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  static int calls = 0;
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (asked("fail") && rank == 1 && ++calls == 2)
    return MPI_ERR_OTHER;
  return PMPI_Ireduce_scatter_block(send, receive, count, type, op, comm, request);
}

/* The second one of 8 bytes fails on rank 1: the last of an all_to_all of two ranks. */
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  static int calls = 0;
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (asked("fail") && rank == 1 && count == 8 && ++calls == 2)
    return MPI_ERR_OTHER;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

/* The message arrives just before. */
int MPI_Cancel(MPI_Request* request) {
  int there = 0;
  while (asked("deliver") && !there)
    PMPI_Request_get_status(*request, &there, MPI_STATUS_IGNORE);
  return PMPI_Cancel(request);
}

/* Where a duplicate is going to be written, which may be long after the caller gave up. */
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* made, MPI_Request* request) {
  pthread_attr_t attributes;
  void* stack;
  size_t size;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &stack, &size);
    fprintf(stderr, "a duplicate is written %s\n",
            (char*)made >= (char*)stack && (char*)made < (char*)stack + size ? "to the stack" : "elsewhere");
  }
  return PMPI_Comm_idup(comm, made, request);
}

/* Rank 1 reads on for a while, as one does that still leaves a barrier on a busy machine. */
int MPI_Finalize(void) {
  struct timespec begin, now;
  int rank = 0, there = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (asked("linger") && rank == 1 && now.tv_sec < begin.tv_sec + 2);
  return PMPI_Finalize();
}
