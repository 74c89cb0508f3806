/*
 * Stands for a compiler: for a source named job* it works some seconds in a process of its own (it occupies MB, and says in
 * LOG when it begins and ends); then the real one of the same name, in ../real, does what it was called for.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* steps of 10 ms, counted: a process that is stopped does not come on */
enum { QUIET = 30, STEPS = 170 };

static void say(const char *word)
{
    int log = open(LOG, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(log, word, strlen(word)) < 0)
        _exit(1);
    close(log);
}

static void work(void)
{
    size_t part = (size_t)MB * 1024 * 1024 / (STEPS - QUIET);
    for (int step = 0; step < STEPS; step++) {
        if (step == QUIET)
            say("+");
        if (step >= QUIET)
            memset(malloc(part), 1, part);
        usleep(10000);
    }
    say("-");
    _exit(0);
}

int main(int argc, char **argv)
{
    char real[PATH_MAX], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    int compiles = 0, status;
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        const char *base = strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i], *dot = strrchr(base, '.');
        compiles |= !strncmp(base, "job", 3) && dot && (dot[1] == 'c' || dot[1] == 'r');
    }
    if (compiles) {
        pid_t child = fork();
        if (!child)
            work();
        waitpid(child, &status, 0);
        if (status)
            return 1;
    }
    path[n] = 0;
    *strrchr(path, '/') = 0;
    snprintf(real, sizeof real, "%s/../real/%s", path, name);
    argv[0] = real;
    execv(real, argv);
    return 127;
}
