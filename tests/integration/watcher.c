/* SPDX-License-Identifier: MIT */
/* watcher: an observer that a test leads by words on stdin, one a line, each answered by one JSON
 * object on stdout:
 *
 *   open latest|STEP   zero_version_open
 *   close              zero_version_close
 *   sum                of the open version's parameters
 *   list               zero_versions
 *   write              tries every way to change the open version
 *   loop N             N times open latest, sum, close; an object each time
 *
 * Ends with its stdin.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/integration/sum.h"

static zero_client *client;
static struct zero_detail detail;

static void answer(zero_status s)
{
    printf("{\"code\":\"%s\",\"text\":\"%s\",\"step\":%" PRIu64 "}\n", zero_code_name(s.code),
           zero_failed(s) ? zero_error_text(client) : "", zero_client_info(client)->step);
}

static void must(zero_status s, const char *what)
{
    if (!zero_failed(s))
        return;
    fprintf(stderr, "%s: %s: %s\n", what, zero_code_name(s.code),
            client ? zero_error_text(client) : detail.text);
    exit(10);
}

static void do_open(const char *step)
{
    uint64_t which = strcmp(step, "latest") == 0 ? ZERO_LATEST : strtoull(step, NULL, 10);

    answer(zero_version_open(client, which, NULL));
}

static void do_sum(void)
{
    zero_status s = zero_success();
    uint64_t sum = sum_params(client, &s);

    printf("{\"code\":\"%s\",\"step\":%" PRIu64 ",\"sum\":\"%016" PRIx64 "\"}\n",
           zero_code_name(s.code), zero_client_info(client)->step, sum);
}

static void do_loop(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        must(zero_version_open(client, ZERO_LATEST, NULL), "open");
        do_sum();
        must(zero_version_close(client), "close");
    }
}

static void do_list(void)
{
    uint64_t steps[64];
    size_t count = 0;

    must(zero_versions(client, steps, 64, &count), "list");
    printf("{\"steps\":[");
    for (size_t i = 0; i < count; i++)
        printf("%s%" PRIu64, i ? "," : "", steps[i]);
    printf("]}\n");
}

/* Where the version is mapped, and the path that opens its memory again. */
static void *find_version(char *path, size_t path_bytes)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long begin = 0, end = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "memfd:zero-version") != NULL &&
            sscanf(line, "%lx-%lx", &begin, &end) == 2)
            break;
    if (maps != NULL)
        fclose(maps);
    snprintf(path, path_bytes, "/proc/self/map_files/%lx-%lx", begin, end);
    return (void *)begin; /* NOLINT(performance-no-int-to-ptr): what the kernel says */
}

/* Each way's errno; 0 would be a hole in the seal. */
static void do_write(void)
{
    char path[128];
    void *base = find_version(path, sizeof path);
    int protect = mprotect(base, 4096, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
    int fd = open(path, O_RDWR | O_CLOEXEC), opened = fd >= 0 ? 0 : errno;
    int written = opened, mapped = opened, punched = opened, cut = opened;

    if (fd >= 0) {
        written = pwrite(fd, "x", 1, 0) == 1 ? 0 : errno;
        mapped = mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED ? 0 : errno;
        punched =
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 ? 0 : errno;
        cut = ftruncate(fd, 0) == 0 ? 0 : errno;
        close(fd);
    }
    printf("{\"base\":%d,\"mprotect\":%d,\"open\":%d,\"write\":%d,\"mmap\":%d,\"punch\":%d,"
           "\"truncate\":%d}\n",
           base != NULL, protect, opened, written, mapped, punched, cut);
}

int main(void)
{
    const struct zero_attach_options options = { .role = ZERO_OBSERVER };
    char line[128], *argument;

    must(zero_attach(&options, &client, &detail), "attach");
    must(zero_register(client, NULL), "register");
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        argument = strchr(line, ' ');
        if (argument != NULL)
            *argument++ = '\0';
        if (strcmp(line, "open") == 0)
            do_open(argument ? argument : "latest");
        else if (strcmp(line, "close") == 0)
            answer(zero_version_close(client));
        else if (strcmp(line, "sum") == 0)
            do_sum();
        else if (strcmp(line, "list") == 0)
            do_list();
        else if (strcmp(line, "write") == 0)
            do_write();
        else if (strcmp(line, "loop") == 0)
            do_loop(argument ? atol(argument) : 1);
        fflush(stdout);
    }
    zero_detach(client);
    return 0;
}
