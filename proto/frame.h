/* SPDX-License-Identifier: MIT */
/* frame.h: one message on a SOCK_SEQPACKET socket: eight bytes of header, then protobuf, with fds.
 *
 *   | magic 'Z' 'R' | type u16 | body bytes u32 | body ... |          little endian
 *
 * Owns    nothing; received fds belong to the caller.
 * Thread  any, one per socket and direction.
 * Fails   PROTOCOL (a frame that is not one), DAEMON_LOST (the other side closed), DEADLINE, IO.
 * Uses    status, the generated messages.   Used by client, daemon/session.
 */
#ifndef ZERO_FRAME_H
#define ZERO_FRAME_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/status.h"

enum {
    ZERO_FRAME_HEADER = 8,
    ZERO_FRAME_MAX = 65536 + 4096, /* a blob of 64 KiB fits */
    ZERO_FRAME_MAX_FDS = 140,      /* ring, bell, window, staging and an arena of each rank */
    ZERO_FRAME_MAX_TENSORS = 4096, /* in one frame */
    ZERO_FRAME_MAX_PATH = 4095     /* bytes of a path, without the NUL */
};

/* FRAME(name, wire number, message): every message of the session protocol. */
#define ZERO_FRAMES(FRAME)                       \
    FRAME(HELLO, 1, hello)                       \
    FRAME(WELCOME, 2, welcome)                   \
    FRAME(REGISTER_CONFIG, 3, register_config)   \
    FRAME(REGISTER_TENSORS, 4, register_tensors) \
    FRAME(REGISTER_END, 5, register_end)         \
    FRAME(REGISTERED, 6, registered)             \
    FRAME(VERSION_OPEN, 7, version_open)         \
    FRAME(VERSION_OPENED, 8, version_opened)     \
    FRAME(MODEL_END, 9, model_end)               \
    FRAME(ERROR, 10, error)                      \
    FRAME(VERSION_CLOSE, 11, version_close)      \
    FRAME(VERSION_LIST, 12, version_list)        \
    FRAME(VERSION_STEPS, 13, version_steps)      \
    FRAME(SAVE_BEGIN, 14, save_begin)            \
    FRAME(SAVE_ENDED, 15, save_ended)            \
    FRAME(SAVE_LOOK, 16, save_look)

enum zero_frame_type {
#define FRAME(name, number, message) ZERO_FRAME_##name = (number),
    ZERO_FRAMES(FRAME)
#undef FRAME
};

/* The descriptor of a type's message; NULL for a number that is no type. */
const ProtobufCMessageDescriptor *zero_frame_descriptor(uint32_t type);

/* A received frame. The message and the fds are the holder's until zero_frame_release, which closes
 * every fd that was not taken out (set to -1). */
struct zero_frame {
    enum zero_frame_type type;
    ProtobufCMessage *message;
    int fds[ZERO_FRAME_MAX_FDS];
    size_t fd_count;
};

void zero_frame_release(struct zero_frame *frame);

/* Checks a datagram and unpacks it. Length, type, and the cap of every string and array are
 * checked; strings are UTF-8 without control characters and NULs. Hostile bytes never allocate more
 * than ZERO_FRAME_UNPACKED. */
enum { ZERO_FRAME_UNPACKED = 4 * 1024 * 1024 };
zero_status zero_frame_decode(const void *bytes, size_t count, struct zero_frame *out,
                              struct zero_detail *out_detail);

/* What a sender hands over with a frame; fds are borrowed. */
struct zero_frame_fds {
    const int *fds;
    size_t count;
};

/* Sends one frame; fds may be NULL. Waits at most deadline_ms for room (0: does not wait). */
zero_status zero_frame_send(int socket, enum zero_frame_type type, const void *message,
                            const struct zero_frame_fds *fds, int deadline_ms);

/* Receives one frame with at most fd_capacity fds, waiting at most deadline_ms. With fd_capacity 0
 * the kernel drops what came. On failure *out holds nothing. */
zero_status zero_frame_receive(int socket, size_t fd_capacity, int deadline_ms,
                               struct zero_frame *out, struct zero_detail *out_detail);

#endif
