/* The same operations as in operations.py, straight on MPI: the figures everything else is compared with.
 *
 * usage: raw SIZE... ; prints on rank 0 one line for each operation and size: operation bytes microseconds (median of
 * the slowest rank's times).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    const int repeat = atoi(arguments[i + 1]);
    double* times = malloc(sizeof(double) * (size_t)repeat);
    send = calloc(1, bytes);
    receive = calloc((size_t)size, bytes);
    memset(send, 0, bytes);
    memset(receive, 0, bytes * (size_t)size);
    for (size_t which = 0; which < sizeof(operations) / sizeof(*operations); ++which) {
      for (int turn = -3; turn < repeat; ++turn) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        operations[which].run(bytes);
        const double time = MPI_Wtime() - start;
        if (turn >= 0)
          times[turn] = time;
      }
      qsort(times, (size_t)repeat, sizeof(double), compare);
      double median = times[repeat / 2] * 1e6, slowest = 0;
      MPI_Reduce(&median, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (rank == 0)
        printf("%s %zu %.2f\n", operations[which].name, bytes, slowest);
    }
    free(send);
    free(receive);
    free(times);
  }
  MPI_Finalize();
  return 0;
}
