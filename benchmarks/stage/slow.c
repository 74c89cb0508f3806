/*
 * Preloaded, makes every look-up of a name below $SLOW_PATH take $SLOW_MICROSECONDS longer, as a file system on the
 * network does. What the dynamic linker itself opens is not delayed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void wait_for(const char *path)
{
    const char *slow = getenv("SLOW_PATH"), *time = getenv("SLOW_MICROSECONDS");

    if (slow && time && path && strncmp(path, slow, strlen(slow)) == 0) {
        long microseconds = atol(time);
        struct timespec delay = {microseconds / 1000000, microseconds % 1000000 * 1000};
        nanosleep(&delay, NULL);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags, mode) \
    do { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); } while (0)

int open(const char *path, int flags, ...) { int mode; MODE(flags, mode); wait_for(path); return REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { int mode; MODE(flags, mode); wait_for(path); return REAL(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { int mode; MODE(flags, mode); wait_for(path); return REAL(openat)(at, path, flags, mode); }
int stat(const char *path, struct stat *result) { wait_for(path); return REAL(stat)(path, result); }
int stat64(const char *path, struct stat64 *result) { wait_for(path); return REAL(stat64)(path, result); }
int lstat(const char *path, struct stat *result) { wait_for(path); return REAL(lstat)(path, result); }
int lstat64(const char *path, struct stat64 *result) { wait_for(path); return REAL(lstat64)(path, result); }
int access(const char *path, int mode) { wait_for(path); return ((int (*)(const char *, int))dlsym(RTLD_NEXT, "access"))(path, mode); }
DIR *opendir(const char *path) { wait_for(path); return REAL(opendir)(path); }
