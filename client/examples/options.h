/* SPDX-License-Identifier: MIT */
/* options.h: the command line.
 *
 * Owns    the paths it found by itself live as long as the program.
 * Thread  main, once.
 * Fails   a wrong command line ends the program with exit code 64 and a sentence.
 * Uses    layers.   Used by gpt.
 */
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H

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
};

void options_parse(struct options *options, int argc, char **argv);

#endif
