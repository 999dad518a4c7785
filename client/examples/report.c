/* SPDX-License-Identifier: MIT */
#include "client/examples/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool report_open(struct report *report, const char *log, uint64_t first, uint64_t last,
                 size_t tokens)
{
    /* Under zerorun stderr is a pipe, and ZERO_TERMINAL says what it ends in. */
    const char *terminal = getenv("ZERO_TERMINAL");

    *report = (struct report){
        .terminal = isatty(STDERR_FILENO) || (terminal != NULL && strcmp(terminal, "1") == 0),
        .first = first,
        .last = last,
        .tokens = tokens,
        .begun = seconds(),
        .name = log,
    };
    report->before = report->begun;
    if (log == NULL)
        return true;
    report->log = fopen(log, first == 0 ? "w" : "a");
    if (report->log == NULL) {
        fprintf(stderr, "gpt: %s: %s\n", log, strerror(errno));
        return false;
    }
    setvbuf(report->log, NULL, _IOLBF, 0); /* whole lines, also if the trainer is killed */
    return true;
}

/* JSON has no infinity and no NaN. */
static const char *json(double value, char text[static 32])
{
    if (!isfinite(value))
        return "null";
    snprintf(text, 32, "%.12g", value);
    return text;
}

static bool log_failed(const struct report *report)
{
    fprintf(stderr, "gpt: cannot write %s: %s\n", report->name, strerror(errno));
    return false;
}

/* The log is line buffered: what fails is this line. */
static bool log_step(FILE *log, const struct zero_step_result *r, double loss_scale, double speed)
{
    char loss[32], norm[32], lr[32], scale[32], tokens[32];

    return fprintf(log,
                   "{\"step\":%" PRIu64 ",\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"loss_scale\":%s,"
                   "\"applied\":%s,\"tokens_per_s\":%s}\n",
                   r->step - 1, json(r->scalars[0], loss), json(r->grad_norm, norm),
                   json(r->lr, lr), json(loss_scale, scale),
                   r->outcome == ZERO_STEP_APPLIED ? "true" : "false",
                   json(floor(speed), tokens)) > 0;
}

static void show_step(const struct report *report, const struct zero_step_result *r, double speed)
{
    const uint64_t tenth = (report->last - report->first + 9) / 10;
    const bool end = r->step == report->last;

    if (!report->terminal && !end && (r->step - report->first) % tenth != 0)
        return;
    const double mean = (seconds() - report->begun) / (double)(r->step - report->first);
    const unsigned left = (unsigned)(mean * (double)(report->last - r->step) + 0.5);
    fprintf(stderr,
            "step %" PRIu64 "/%" PRIu64 "  loss %.4f  lr %.3g  %.0f tokens/s  %u:%02u left%s",
            r->step, report->last, r->scalars[0], r->lr, speed, left / 60, left % 60,
            r->outcome == ZERO_STEP_APPLIED ? "" : "  (skipped)");
    fputs(!report->terminal ? "\n" : end ? "   \n" : "   \r", stderr); /* over a longer line */
    fflush(stderr);
}

bool report_step(struct report *report, const struct zero_step_result *result, double loss_scale)
{
    const double now = seconds(), speed = (double)report->tokens / (now - report->before);

    report->before = now;
    if (report->log != NULL && !log_step(report->log, result, loss_scale, speed))
        return log_failed(report);
    show_step(report, result, speed);
    return true;
}

bool report_close(struct report *report)
{
    if (report->log == NULL)
        return true;
    return fclose(report->log) == 0 || log_failed(report);
}
