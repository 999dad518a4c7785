/* SPDX-License-Identifier: MIT */
/* report.h: how training goes, for people (stderr) and for programs (a JSON object a step).
 *
 * Owns    the log file.
 * Thread  one at a time.
 * Fails   with a sentence on stderr.
 * Uses    zeroclient.   Used by gpt.
 */
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <stdio.h>

#include "client/zeroclient.h"

struct report {
    FILE *log;        /* NULL: none */
    const char *name; /* of the log; borrowed */
    bool terminal;
    uint64_t first, last; /* steps of this run */
    size_t tokens;        /* of the group, in a step */
    double begun, before; /* seconds: the run, the step */
};

/* A run from step first to step last. The log is continued if it is not the first run. */
bool report_open(struct report *report, const char *log, uint64_t first, uint64_t last,
                 size_t tokens);

/* loss_scale is the one that the step was computed with. */
bool report_step(struct report *report, const struct zero_step_result *result, double loss_scale);

bool report_close(struct report *report);

#endif
