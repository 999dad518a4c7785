/* SPDX-License-Identifier: MIT */
#include "daemon/base/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t process_start(uint32_t pid)
{
    char path[64], text[1024];
    uint64_t start = 0;

    snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    const char *at = strrchr(text, ')'); /* the name may hold anything; field 3 follows */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL && sscanf(at, "%" SCNu64, &start) == 1 ? start : 0;
}

int process_open(uint32_t pid)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}
