/* SPDX-License-Identifier: MIT */
/* stream.h: a job's blocks to the disk, many at a time.
 *
 * By io_uring, 16 blocks in flight; where the kernel does not let us have one (containers often
 * forbid it), by 4 threads. Every result is looked at: a short write is continued, an interrupted
 * one repeated.
 *
 * Owns    its ring, threads and buffers for the call.
 * Thread  blocks the caller's.
 * Fails   IO with the file and the offset; NO_MEMORY; INVALID_STATE when cancelled.
 * Uses    blocks, liburing.   Used by save.
 */
#ifndef DAEMON_STORE_STREAM_H
#define DAEMON_STORE_STREAM_H

#include "daemon/store/blocks.h"

zero_status store_stream(struct store_job *job, enum store_engine *out_engine,
                         struct zero_detail *out_detail);

#endif
