/* SPDX-License-Identifier: MIT */
#include "daemon/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/base/fail.h"

static sigset_t those_heard(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

void signals_block(void)
{
    const sigset_t set = those_heard();

    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct signals *signals = poll->data;
    struct signalfd_siginfo info;

    (void)status, (void)events;
    while (read(signals->fd, &info, sizeof info) == sizeof info)
        signals->on_signal(signals->context, (int)info.ssi_signo);
}

zero_status signals_open(struct signals *signals, uv_loop_t *loop)
{
    const sigset_t set = those_heard();

    signals->fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals->fd < 0)
        return FAIL(SYSTEM, "listen for signals", "signalfd: %s", strerror(errno));
    int failed = uv_poll_init(loop, &signals->poll, signals->fd);
    if (failed != 0) {
        close(signals->fd);
        return FAIL(SYSTEM, "listen for signals", "%s", uv_strerror(failed));
    }
    signals->poll.data = signals;
    uv_poll_start(&signals->poll, UV_READABLE, on_readable);
    uv_unref((uv_handle_t *)&signals->poll);
    return zero_success();
}

void signals_close(struct signals *signals)
{
    uv_close((uv_handle_t *)&signals->poll, NULL);
    close(signals->fd);
}
