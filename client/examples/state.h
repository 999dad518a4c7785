/* SPDX-License-Identifier: MIT */
/* state.h: all weights, into the daemons and out of them.
 *
 * Owns    nothing.
 * Thread  as zeroclient.h.
 * Fails   what the client says; NO_MEMORY.
 * Uses    zeroclient, layers, libcrypto.   Used by gpt.
 */
#ifndef EXAMPLES_STATE_H
#define EXAMPLES_STATE_H

#include "client/examples/layers.h"
#include "client/zeroclient.h"

/* First values, drawn from the seed; every rank the same. */
zero_status state_fill(zero_client *client, const struct layers *layers, uint64_t seed);

/* The sha256 of the fp32 master weights in model order, as hexadecimal digits. */
enum { STATE_HEX = 65 };
zero_status state_hash(zero_client *client, const struct layers *layers, char hex[STATE_HEX]);

#endif
