/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_ready.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

int ready_open(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
    } else if (fd >= 0) {
        memcpy(address.sun_path, path, strlen(path) + 1);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

bool ready_take(int fd)
{
    char text[4096];
    bool ready = false;

    for (ssize_t n; (n = recv(fd, text, sizeof text - 1, 0)) >= 0;) {
        text[n] = '\0';
        /* Assignments, one a line. */
        for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;)
            ready = ready || strcmp(line, "READY=1") == 0;
    }
    return ready;
}
