/* SPDX-License-Identifier: MIT */
/* options.h: the command line.
 *
 * Owns    nothing; texts are those of the command line, or in struct options.
 * Thread  main, once.
 * Fails   a wrong command line ends the program with exit code 64 and a sentence.
 * Uses    layers.   Used by gpt.
 */
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H

#include <limits.h>
#include <stdbool.h>

#include "client/examples/layers.h"

struct options {
    const char *text; /* default: the book beside the program */
    const char
        *config;     /* default: ZERO_CONFIG, which zerorun sets, or gpt.json beside the program */
    const char *log; /* NULL: none */
    struct gpt_shape shape;
    uint64_t steps, seed, eval, sample;
    bool layers_json;
    char beside[2][PATH_MAX]; /* paths that were found beside the program */
};

void options_parse(struct options *options, int argc, char **argv);

#endif
