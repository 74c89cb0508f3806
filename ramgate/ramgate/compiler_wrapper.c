/*
 * ramgate-cc COMMAND ...: the compiler wrapper. It asks the broker (broker.py) before it starts the command, runs it in
 * a process group of its own, reports how it ended, and runs it again if the broker says so.
 *
 * Called by another name (a link in a directory on $PATH) it stands in for the next program of that name on $PATH.
 *
 * A message is a letter and what follows:
 *   to the broker   c  directory NUL argument NUL argument NUL ...   a compiler wants to start
 *                   s  the same, from a link
 *                   p  pid                                           it runs (the group has the same number)
 *                   e  status, largest RSS in kB, newline, end of what it wrote
 *   to the wrapper  g  start      d  done: pass the output on        r PATH  remove PATH if it is a file, and ask again
 *                   x  LINE  print it and fail
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
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

/* bytes of a message, of output that the broker sees, of a command line (longer words are left out) */
enum { MOST = 65536 };
static int broker = -1;
static char message[MOST];

static void lose_broker(void)
{
    close(broker);
    broker = -1;
}

/* send the first bytes of the message */
static void tell(size_t length)
{
    if (broker >= 0 && send(broker, message, length, MSG_NOSIGNAL) < 0)
        lose_broker();
}

/* the kind of the broker's next message; 0 if there is no broker any more */
static char receive(void)
{
    ssize_t n = broker >= 0 ? recv(broker, message, sizeof message - 1, 0) : 0;
    message[n > 0 ? n : 0] = 0;
    if (n <= 0)
        lose_broker();
    return message[0];
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

static void connect_to_broker(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = base_name(path);
    char directory[4096];
    /* an address is short, a path is not */
    snprintf(directory, sizeof directory, "%.*s", (int)(name - path), path);
    int place = open(directory, O_PATH | O_CLOEXEC);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", place, name);
    broker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(broker, (struct sockaddr *)&address, sizeof address))
        lose_broker();
    close(place);
}

static void ask(char kind, char **command)
{
    size_t length = 1;
    message[0] = kind;
    if (!getcwd(message + 1, PATH_MAX))
        strcpy(message + 1, "/");
    length += strlen(message + 1) + 1;
    for (char **word = command; *word; word++) {
        size_t n = strlen(*word) + 1;
        if (length + n > sizeof message)
            continue;
        memcpy(message + length, *word, n);
        length += n;
    }
    tell(length);
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
    tell(snprintf(message, sizeof message, "p%d", compiler));
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
    off_t end = lseek(output, 0, SEEK_END);
    int length = snprintf(message, sizeof message, "e%d %ld\n", status, resident);
    off_t room = sizeof message - length;
    ssize_t n = status ? pread(output, message + length, room, end > room ? end - room : 0) : 0;
    tell(length + (n > 0 ? n : 0));
}

static void pass_on(int output)
{
    static char buffer[MOST];
    off_t at = 0;
    ssize_t n, written;
    while ((n = pread(output, buffer, sizeof buffer, at)) > 0 && (written = write(2, buffer, n)) > 0)
        at += written;
}

/* where `ramgate run` listens: beside this program */
static const char *socket_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof "socket");
    path[n < 0 ? 0 : n] = 0;
    strcpy((char *)base_name(path), "socket");
    return path;
}

/* what the compiler runs looks for programs of the same name: it shall not find the links beside the socket */
static void leave_path(const char *socket)
{
    char entry[4096], *path = getenv("PATH"), *at;
    int length = snprintf(entry, sizeof entry, "%.*s:", (int)(base_name(socket) - socket - 1), socket);
    while (path && (at = strstr(path, entry)))
        memmove(at, at + length, strlen(at + length) + 1);
}

/* no compilation: only a question (--version), input that is piped in, a client whose server compiles */
static int needs_no_turn(char **command, int stands_in)
{
    int files = !stands_in;
    for (char **word = command + 1; *word; word++) {
        if (stands_in && !strcmp(*word, "-"))
            return 1;
        files += **word != '-';
    }
    return !files || !strcmp(base_name(command[0]), "sccache");
}

int main(int argc, char **argv)
{
    const char *path = socket_path();
    int stands_in = strncmp(base_name(argv[0]), "ramgate-cc", 10) != 0;

    leave_path(path);
    if (stands_in) {
        argv[0] = (char *)base_name(argv[0]);
    } else if (argc < 2) {
        fprintf(stderr, "usage: ramgate-cc COMMAND ...: run a compiler within the memory that `ramgate run` watches\n");
        return 2;
    } else {
        argv++;
    }
    if (getenv("RAMGATE_WRAPPED") || access(path, F_OK) || needs_no_turn(argv, stands_in)) {
        execvp(argv[0], argv);
        return fail(argv[0], strerror(errno));
    }
    connect_to_broker(path);
    ask(stands_in ? 's' : 'c', argv);
    for (;;) {
        struct rusage used = {.ru_maxrss = 0};
        struct stat partial;
        int status, output = memfd_create("ramgate", MFD_CLOEXEC);
        char kind = receive();

        fcntl(output, F_SETFL, O_APPEND);
        if (!kind)
            wait_for_turn(path);
        if (kind != 'x') {
            status = run(argv, output, &used);
            report(status, used.ru_maxrss, output);
            kind = status ? receive() : 'd';
        }
        if (kind == 'x') {
            fprintf(stderr, "%s\n", message + 1);
            return 1;
        }
        if (kind != 'r') {
            pass_on(output);
            return status;
        }
        if (lstat(message + 1, &partial) == 0 && S_ISREG(partial.st_mode))
            unlink(message + 1);
        close(output);
    }
}
