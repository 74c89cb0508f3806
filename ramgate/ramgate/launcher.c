/*
 * ramgate-cc COMMAND ...: asks the broker before it starts the command, runs it in a process group of its own,
 * tells the broker how it ended, and runs it again where the broker says so. launcher.py is the same in Python.
 *
 * A frame is a letter, four bytes of length (this machine's order), and that many bytes:
 *   to the broker    j  cwd NUL argument NUL argument NUL ...    a job wants to start
 *                    p  pid                                      it runs (the process group has the same number)
 *                    e  status, largest RSS in kB, CPU ms, newline, end of what it wrote
 *   to the launcher  g  start      d  done: pass the output on     r PATH  remove PATH if it is a file and ask again
 *                    x  LINE  print it and fail
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TAIL = 65536, ATTEMPTS_ALONE = 3 };
static int broker = -1;
static sigset_t caught, before;

static int all(int fd, char *data, size_t length, int writing)
{
    while (length) {
        ssize_t n = writing ? send(fd, data, length, MSG_NOSIGNAL) : read(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        data += n;
        length -= n;
    }
    return 1;
}

static void lose_broker(void)
{
    if (broker >= 0)
        close(broker);
    broker = -1;
}

static void tell(char kind, char *data, uint32_t length)
{
    char head[5] = {kind};
    memcpy(head + 1, &length, 4);
    if (broker >= 0 && !(all(broker, head, 5, 1) && all(broker, data, length, 1)))
        lose_broker();
}

/* the broker's next word; 0 where there is no broker any more */
static char hear(char **data)
{
    char head[5];
    uint32_t length;
    if (broker < 0 || !all(broker, head, 5, 0)) {
        lose_broker();
        return 0;
    }
    memcpy(&length, head + 1, 4);
    *data = calloc(length + 1, 1);
    if (!*data || !all(broker, *data, length, 0)) {
        lose_broker();
        return 0;
    }
    return head[0];
}

/* a signal while waiting for the broker ends the launcher as it would any program */
static char hear_interruptibly(char **data)
{
    char kind;
    sigprocmask(SIG_SETMASK, &before, NULL);
    kind = hear(data);
    sigprocmask(SIG_BLOCK, &caught, NULL);
    return kind;
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char directory[4096];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), place, done;
    /* an address is short, a path is not */
    snprintf(directory, sizeof directory, "%.*s", (int)(name - path), path);
    place = open(directory, O_PATH | O_CLOEXEC);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", place, name);
    done = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(place);
    if (fd >= 0 && !done)
        close(fd);
    return done ? fd : -1;
}

/* without a broker: one at a time */
static void wait_for_turn(const char *path)
{
    static int turn = -1;
    char lock[4096];
    if (turn >= 0)
        return;
    snprintf(lock, sizeof lock, "%s.turn", path);
    turn = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (turn >= 0)
        flock(turn, LOCK_EX);
    sigprocmask(SIG_BLOCK, &caught, NULL);
}

static int capture(void)
{
    int fd = memfd_create("ramgate", MFD_CLOEXEC);
    if (fd < 0) {
        FILE *file = tmpfile();
        fd = file ? fileno(file) : open("/dev/null", O_RDWR);
    }
    fcntl(fd, F_SETFL, O_APPEND);
    return fd;
}

static void pass_on(int fd)
{
    static char buffer[65536];
    ssize_t n, written;
    off_t at = 0;
    while ((n = pread(fd, buffer, sizeof buffer, at)) > 0) {
        at += n;
        for (char *from = buffer; n > 0; from += written, n -= written) {
            written = write(2, from, n);
            if (written < 0 && errno == EINTR)
                written = 0;
            if (written < 0)
                return;
        }
    }
}

static int run(char **argv, int output, struct rusage *used)
{
    struct stat out, err;
    int status, waiting = signalfd(-1, &caught, SFD_CLOEXEC);
    pid_t parent = getpid(), job;
    char number[16];
    int together = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino;

    job = fork();
    if (job == 0) {
        int adjust = open("/proc/self/oom_score_adj", O_WRONLY);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        /* should the kernel have to choose, then not the build tool */
        if (adjust >= 0 && write(adjust, "500", 3) >= 0)
            close(adjust);
        dup2(output, 2);
        if (together)
            dup2(output, 1);
        sigprocmask(SIG_SETMASK, &before, NULL);
        setenv("RAMGATE_JOB", "1", 1);
        execvp(argv[0], argv);
        dprintf(2, "ramgate-cc: %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    if (job < 0) {
        close(waiting);
        return 137 << 8;
    }
    setpgid(job, job);
    tell('p', number, snprintf(number, sizeof number, "%d", job));
    for (;;) {
        struct pollfd both[2] = {{waiting, POLLIN, 0}, {broker, 0, 0}};
        struct signalfd_siginfo info;
        if (wait4(job, &status, WNOHANG, used) == job)
            break;
        if (poll(both, 2, -1) < 0)
            continue;
        if (both[1].revents & (POLLHUP | POLLERR)) {
            lose_broker();
            kill(-job, SIGCONT);            /* whoever it had frozen goes on */
        }
        if (both[0].revents && read(waiting, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD) {
            kill(-job, info.ssi_signo);
            kill(-job, SIGCONT);
        }
    }
    close(waiting);
    return status;
}

int main(int argc, char **argv)
{
    static char report[TAIL + 64];
    const char *path = getenv("RAMGATE_SOCKET");
    char *message = NULL, *data = "", directory[4096];
    size_t length = 0, room = 4096;

    if (argc < 2) {
        fprintf(stderr, "usage: ramgate-cc COMMAND ...: run a compiler within the memory that `ramgate run` watches\n");
        return 2;
    }
    if (!path || getenv("RAMGATE_JOB")) {
        execvp(argv[1], argv + 1);
        fprintf(stderr, "ramgate-cc: %s: %s\n", argv[1], strerror(errno));
        return 127;
    }
    sigemptyset(&caught);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGHUP);
    sigaddset(&caught, SIGCHLD);
    sigprocmask(SIG_BLOCK, &caught, &before);

    for (int i = 1; i < argc; i++)
        room += strlen(argv[i]) + 1;
    message = malloc(room);
    if (!message)
        return fputs("ramgate-cc: out of memory\n", stderr), 1;
    if (!getcwd(directory, sizeof directory))
        strcpy(directory, "/");
    length = stpcpy(message, directory) - message + 1;
    for (int i = 1; i < argc; i++)
        length += stpcpy(message + length, argv[i]) - (message + length) + 1;
    broker = connect_to(path);
    tell('j', message, length);

    for (int attempt = 1;; attempt++) {
        struct rusage used;
        int output = capture(), status, code;
        char kind = hear_interruptibly(&data);
        off_t end;

        if (kind == 'x') {
            fprintf(stderr, "%s\n", data);
            return 1;
        }
        if (!kind)
            wait_for_turn(path);
        status = run(argv + 1, output, &used);
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        end = lseek(output, 0, SEEK_END);
        length = snprintf(report, 64, "%d %ld %ld\n", code, used.ru_maxrss,
                          (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000L +
                          (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000L);
        if (code && end > 0) {
            ssize_t n = pread(output, report + length, TAIL, end > TAIL ? end - TAIL : 0);
            length += n > 0 ? n : 0;
        }
        tell('e', report, length);
        kind = code ? hear_interruptibly(&data) : 'd';
        if (kind == 'x') {
            fprintf(stderr, "%s\n", data);
            return 1;
        }
        if (kind == 'r' || (!kind && code == 137 && attempt < ATTEMPTS_ALONE)) {
            struct stat partial;
            if (kind == 'r' && *data && lstat(data, &partial) == 0 && S_ISREG(partial.st_mode))
                unlink(data);
            close(output);
            continue;
        }
        pass_on(output);
        return code;
    }
}
