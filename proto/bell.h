/* SPDX-License-Identifier: MIT */
/* bell.h: ringing a worker's bell, from its trainer, its peers or its own process.
 *
 * Waking a thread on an idle core costs the caller up to 30 us on a virtual machine: what nobody
 * waits for does not interrupt a nap.
 *
 * Thread  any.
 * Fails   never.
 * Uses    ring.   Used by client, daemon/comm, daemon/step.
 */
#ifndef ZERO_BELL_H
#define ZERO_BELL_H

#include <stdbool.h>

#include "proto/ring.h"

/* urgent: somebody waits for what there is to do. */
void zero_bell_ring(struct zero_bell *bell, bool urgent);

#endif
