/* The same operations as in operations.py, straight on MPI: the figures everything else is compared with.
 *
 * usage: raw [SIZE LENGTH]... ; prints on rank 0 one line for each operation and size: operation bytes microseconds. So
 * many operations one after the other are timed as one, since after a barrier the ranks do not start at the same moment;
 * of ten such times the median is taken, and of the ranks the slowest.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMES 10

static int rank, size;
static char *send, *receive;

static void all_reduce(size_t bytes) {
  MPI_Allreduce(MPI_IN_PLACE, receive, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(size_t bytes) {
  MPI_Allgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* There and back between neighbours: even ranks send first. */
static void send_recv(size_t bytes) {
  const int other = rank ^ 1;
  if (rank % 2 == 0) {
    MPI_Send(send, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
    MPI_Recv(receive, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Recv(receive, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(send, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
  }
}

/* Aligned as torch does it. Written to, or all its pages are one and the same in the cache; not with zeros, which the
 * compiler may leave out. */
static char* filled(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, 64, bytes) != 0)
    MPI_Abort(MPI_COMM_WORLD, 1);
  memset(memory, 1, bytes);
  return memory;
}

static const struct {
  const char* name;
  void (*run)(size_t bytes);
} operations[] = {{"all_reduce", all_reduce}, {"all_gather", all_gather}, {"send_recv", send_recv}};

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i + 1 < count; i += 2) {
    const size_t bytes = strtoull(arguments[i], NULL, 10);
    const int length = atoi(arguments[i + 1]);
    double times[TIMES];
    send = filled(bytes);
    receive = filled(bytes * (size_t)size);
    for (size_t which = 0; which < sizeof(operations) / sizeof(*operations); ++which) {
      for (int turn = -1; turn < TIMES; ++turn) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int step = 0; step < length; ++step)
          operations[which].run(bytes);
        const double time = MPI_Wtime() - start;
        if (turn >= 0)
          times[turn] = time / length;
      }
      qsort(times, TIMES, sizeof(double), compare);
      double median = times[TIMES / 2] * 1e6, slowest = 0;
      MPI_Reduce(&median, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (rank == 0)
        printf("%s %zu %.2f\n", operations[which].name, bytes, slowest);
    }
    free(send);
    free(receive);
  }
  MPI_Finalize();
  return 0;
}
