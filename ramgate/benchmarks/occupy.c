/*
 * occupy OUTPUT CGROUP SECONDS:KB ...: a stand-in for a compiler in replays. It enters the cgroup (- for none), occupies so much
 * memory at each moment (in between as a ramp), sleeps the rest of the time, and writes the output.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    size_t most = 0, have = 0, page = 4096;
    double begin = now(), time_before = 0, last = 0, lost = 0;
    char *memory;
    FILE *file;

    if (argc < 4)
        return 2;
    if (strcmp(argv[2], "-")) {
        char procs[4096], number[16];
        int fd, length = snprintf(number, sizeof number, "%d", getpid());
        snprintf(procs, sizeof procs, "%s/cgroup.procs", argv[2]);
        fd = open(procs, O_WRONLY);
        if (fd < 0 || write(fd, number, length) != length)
            return 3;
        close(fd);
    }
    for (int i = 3; i < argc; i++) {
        size_t want = atol(strchr(argv[i], ':') + 1) * 1024UL;
        most = want > most ? want : most;
    }
    memory = mmap(NULL, most + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 4;
    madvise(memory, most + page, MADV_NOHUGEPAGE);
    last = begin;
    for (int i = 3; i < argc; i++) {
        double until = atof(argv[i]);
        size_t before = have, want = atol(strchr(argv[i], ':') + 1) * 1024UL;
        for (;;) {
            double t = now(), share;
            size_t target;
            /* a process that was stopped has not worked meanwhile */
            if (t - last > 0.5)
                lost += t - last - 0.02;
            last = t;
            t -= begin + lost;
            share = until > time_before ? (t - time_before) / (until - time_before) : 1;
            share = share < 0 ? 0 : share > 1 ? 1 : share;
            target = (before + ((double)want - (double)before) * share) / page;
            target *= page;
            for (; have < target; have += page)
                memory[have] = 1;
            if (have > target) {
                madvise(memory + target, have - target, MADV_DONTNEED);
                have = target;
            }
            if (t >= until)
                break;
            usleep((until - t < 0.02 ? until - t : 0.02) * 1e6);
        }
        time_before = until;
    }
    file = fopen(argv[1], "w");
    if (!file)
        return 5;
    fprintf(file, "object of %s\n", argv[1]);
    return fclose(file) ? 6 : 0;
}
