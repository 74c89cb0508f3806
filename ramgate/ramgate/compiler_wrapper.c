/*
 * ramgate-cc COMMAND ...: the compiler wrapper. It asks the broker (broker.py) before it starts the command, runs it in
 * a process group of its own, reports how it ended, and runs it again if the broker says so.
 *
 * A message is a letter, four bytes of length (this machine's order), and that many bytes:
 *   to the broker   c  directory NUL argument NUL argument NUL ...   a compiler wants to start
 *                   p  pid                                           it runs (the group has the same number)
 *                   e  status, largest RSS in kB, newline, end of what it wrote
 *   to the wrapper  g  start      d  done: pass the output on        r PATH  remove PATH if it is a file, and ask again
 *                   x  LINE  print it and fail
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

/* bytes of output that the broker sees */
enum { TAIL = 65536 };
static int broker = -1;
/* the broker's last message */
static char message[TAIL];

static void lose_broker(void)
{
    if (broker >= 0)
        close(broker);
    broker = -1;
}

static void send_all(const char *data, size_t length)
{
    while (broker >= 0 && length) {
        ssize_t n = send(broker, data, length, MSG_NOSIGNAL);
        if (n <= 0) {
            lose_broker();
            return;
        }
        data += n;
        length -= n;
    }
}

static void send_header(char kind, uint32_t length)
{
    send_all(&kind, 1);
    send_all((char *)&length, sizeof length);
}

static int receive_all(void *data, size_t length)
{
    return length == 0 || recv(broker, data, length, MSG_WAITALL) == (ssize_t)length;
}

/* the kind of the broker's next message; 0 if there is no broker any more */
static char receive(void)
{
    char kind;
    uint32_t length;
    if (broker >= 0 && receive_all(&kind, 1) && receive_all(&length, sizeof length) && length < sizeof message &&
        receive_all(message, length)) {
        message[length] = 0;
        return kind;
    }
    lose_broker();
    return 0;
}

static void connect_to_broker(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char directory[4096];
    int place;
    /* an address is short, a path is not */
    snprintf(directory, sizeof directory, "%.*s", (int)(name - path), path);
    place = open(directory, O_PATH | O_CLOEXEC);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", place, name);
    broker = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(broker, (struct sockaddr *)&address, sizeof address))
        lose_broker();
    close(place);
}

static void ask(int argc, char **argv)
{
    char directory[4096];
    size_t length = 0;
    if (!getcwd(directory, sizeof directory))
        strcpy(directory, "/");
    argv[0] = directory;
    for (int i = 0; i < argc; i++)
        length += strlen(argv[i]) + 1;
    send_header('c', length);
    for (int i = 0; i < argc; i++)
        send_all(argv[i], strlen(argv[i]) + 1);
}

/* without a broker: one compiler at a time */
static void wait_for_turn(const char *path)
{
    static int turn = -1;
    char lock[4096];
    if (turn >= 0)
        return;
    snprintf(lock, sizeof lock, "%s.turn", path);
    turn = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(turn, LOCK_EX);
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "ramgate-cc: %s: %s\n", what, why);
    return 127;
}

static int same_file(int one, int other)
{
    struct stat a, b;
    return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void start(char **argv, int output, const sigset_t *mask, pid_t parent)
{
    int adjust = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    /* if the kernel has to choose, then not the build tool */
    dprintf(adjust, "500");
    if (same_file(1, 2))
        dup2(output, 1);
    dup2(output, 2);
    sigprocmask(SIG_SETMASK, mask, NULL);
    setenv("RAMGATE_WRAPPED", "1", 1);
    execvp(argv[0], argv);
    _exit(fail(argv[0], strerror(errno)));
}

/* runs the command once; the exit status as a shell gives it */
static int run(char **argv, int output, struct rusage *used)
{
    sigset_t caught, before;
    int status, signals;
    pid_t parent = getpid(), compiler;
    char number[16];

    sigemptyset(&caught);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGHUP);
    sigaddset(&caught, SIGCHLD);
    sigprocmask(SIG_BLOCK, &caught, &before);
    compiler = fork();
    if (compiler == 0)
        start(argv, output, &before, parent);
    if (compiler < 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return 137;
    }
    setpgid(compiler, compiler);
    send_header('p', snprintf(number, sizeof number, "%d", compiler));
    send_all(number, strlen(number));
    signals = signalfd(-1, &caught, SFD_CLOEXEC);
    while (wait4(compiler, &status, WNOHANG, used) != compiler) {
        struct pollfd both[2] = {{signals, POLLIN, 0}, {broker, 0, 0}};
        struct signalfd_siginfo info;
        poll(both, 2, -1);
        if (both[1].revents & (POLLHUP | POLLERR)) {
            lose_broker();
            /* it may have frozen the compiler */
            kill(-compiler, SIGCONT);
        }
        if (both[0].revents && read(signals, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD) {
            kill(-compiler, info.ssi_signo);
            kill(-compiler, SIGCONT);
        }
    }
    close(signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void report(int status, long resident, int output)
{
    static char text[TAIL];
    off_t end = lseek(output, 0, SEEK_END);
    char head[64];
    int length = snprintf(head, sizeof head, "%d %ld\n", status, resident);
    ssize_t n = status && end > 0 ? pread(output, text, TAIL, end > TAIL ? end - TAIL : 0) : 0;
    n = n < 0 ? 0 : n;
    send_header('e', length + n);
    send_all(head, length);
    send_all(text, n);
}

static void pass_on(int output)
{
    static char buffer[TAIL];
    off_t at = 0;
    ssize_t n, written;
    while ((n = pread(output, buffer, sizeof buffer, at)) > 0 && (written = write(2, buffer, n)) > 0)
        at += written;
}

int main(int argc, char **argv)
{
    const char *path = getenv("RAMGATE_SOCKET");

    if (argc < 2) {
        fprintf(stderr, "usage: ramgate-cc COMMAND ...: run a compiler within the memory that `ramgate run` watches\n");
        return 2;
    }
    if (!path || getenv("RAMGATE_WRAPPED")) {
        execvp(argv[1], argv + 1);
        return fail(argv[1], strerror(errno));
    }
    connect_to_broker(path);
    ask(argc, argv);
    for (;;) {
        struct rusage used = {.ru_maxrss = 0};
        struct stat partial;
        int status, output = memfd_create("ramgate", MFD_CLOEXEC);
        char kind = receive();

        fcntl(output, F_SETFL, O_APPEND);
        if (!kind)
            wait_for_turn(path);
        if (kind != 'x') {
            status = run(argv + 1, output, &used);
            report(status, used.ru_maxrss, output);
            kind = status ? receive() : 'd';
        }
        if (kind == 'x') {
            fprintf(stderr, "%s\n", message);
            return 1;
        }
        if (kind != 'r') {
            pass_on(output);
            return status;
        }
        if (lstat(message, &partial) == 0 && S_ISREG(partial.st_mode))
            unlink(message);
        close(output);
    }
}
