/*
 * For LD_PRELOAD: uname() says aarch64, as on Bede, in the process that is EasyBuild. What that process starts (pip,
 * CMake, compilers) is this machine's again, and sees none of it.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

static int easybuild;

__attribute__((constructor)) static void look(void)
{
    char words[65536];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file ? fread(words, 1, sizeof words, file) : 0;
    if (file)
        fclose(file);
    /* the second is a process that forks for each ./eb: tests/preloaded_eb.py */
    easybuild = memmem(words, length, "hpc_pytorch.start", strlen("hpc_pytorch.start")) != NULL
                || memmem(words, length, "preloaded_eb.py", strlen("preloaded_eb.py")) != NULL;
    if (easybuild)
        unsetenv("LD_PRELOAD");
}

int uname(struct utsname *name)
{
    int status = syscall(SYS_uname, name);
    if (status == 0 && easybuild)
        strcpy(name->machine, "aarch64");
    return status;
}
