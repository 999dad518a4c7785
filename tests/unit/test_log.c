/* SPDX-License-Identifier: MIT */
/* A line that somebody outside can cause is written a few times, then counted, and the count is
 * told. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "tests/unit/check.h"

static char text[4096];

/* What was written to stderr since the last call. */
static const char *written(int file)
{
    static off_t read_to;
    ssize_t bytes = pread(file, text, sizeof text - 1, read_to);

    text[bytes > 0 ? bytes : 0] = '\0';
    read_to += bytes > 0 ? bytes : 0;
    return text;
}

static int lines(const char *of)
{
    int count = 0;

    for (; (of = strchr(of, '\n')) != NULL; of++)
        count++;
    return count;
}

static void limits_lines(int file)
{
    struct log_limit limit = { .until_ns = 0 }, other = { .until_ns = 0 };

    for (int i = 0; i < 1000; i++)
        log_limited(&limit, 2, LOG_WARNING_LEVEL, "peer %d knocks", i);
    CHECK(lines(written(file)) == 2);
    CHECK_CONTAINS(text, "zerod[3] warning peer 0 knocks\n");
    CHECK_CONTAINS(text, "peer 1 knocks\n");
    log_limited(&other, 1, LOG_WARNING_LEVEL, "another place");
    CHECK(lines(written(file)) == 1);

    limit.until_ns = 0; /* as if its time had come */
    for (int i = 0; i < 7; i++)
        log_limited(&limit, 2, LOG_WARNING_LEVEL, "peer %d knocks", i);
    CHECK(lines(written(file)) == 2);
    CHECK_CONTAINS(text, "peer 0 knocks (and 998 such lines before it were not written)\n");
    CHECK_CONTAINS(text, "peer 1 knocks\n");
    limit.until_ns = 0;
    log_limited(&limit, 2, LOG_WARNING_LEVEL, "again");
    CHECK_CONTAINS(written(file), "again (and 5 such");
    limit.until_ns = 0;
    log_limited(&limit, 2, LOG_WARNING_LEVEL, "nothing was held");
    CHECK_CONTAINS(written(file), "nothing was held\n");
}

static void levels_count_first(int file)
{
    struct log_limit limit = { .until_ns = 0 };

    log_limited(&limit, 1, LOG_DEBUG_LEVEL, "nobody reads this");
    CHECK(lines(written(file)) == 0 && limit.written == 0 && limit.held == 0);
    for (int i = 0; i < 5; i++)
        LOG_LIMITED(1, INFO, "one place, time %d", i);
    CHECK(lines(written(file)) == 1);
}

static void names_the_rank_once(int file)
{
    log_init(3, LOG_INFO_LEVEL);
    LOG_INFO("alone");
    CHECK_CONTAINS(written(file), " zerod[3] alone\n");
    setenv("ZERO_LOG_NAMED", "1", 1); /* by zerorun, which puts the name before the line */
    log_init(3, LOG_INFO_LEVEL);
    LOG_WARNING("below zerorun");
    CHECK(strstr(written(file), "zerod") == NULL);
    CHECK_CONTAINS(text, " warning below zerorun\n");
}

int main(void)
{
    char path[] = "/tmp/zero-log-XXXXXX";
    int file = mkstemp(path), kept = dup(STDERR_FILENO);

    CHECK(file >= 0 && kept >= 0 && unlink(path) == 0);
    unsetenv("JOURNAL_STREAM");
    unsetenv("ZERO_LOG_NAMED");
    log_init(3, LOG_INFO_LEVEL);
    dup2(file, STDERR_FILENO);
    limits_lines(file);
    levels_count_first(file);
    names_the_rank_once(file);
    dup2(kept, STDERR_FILENO);
    return check_done();
}
