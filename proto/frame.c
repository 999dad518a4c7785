/* SPDX-License-Identifier: MIT */
#include "proto/frame.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/config.h"
#include "proto/layout.h"
#include "proto/ring.h"
#include "proto/text.h"
#include "proto/zero/v1/session.pb-c.h"

static const struct frame_row {
    uint32_t number;
    const ProtobufCMessageDescriptor *descriptor;
} rows[] = {
#define FRAME(name, number, message) { (number), &zero__v1__##message##__descriptor },
    ZERO_FRAMES(FRAME)
#undef FRAME
};

const ProtobufCMessageDescriptor *zero_frame_descriptor(uint32_t type)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].number == type)
            return rows[i].descriptor;
    return NULL;
}

__attribute__((format(printf, 3, 4))) static zero_status
refuse(struct zero_detail *detail, zero_code code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail->text, sizeof detail->text, format, args);
    va_end(args);
    return (zero_status){ code, "read frame" };
}

/* ---- unpacking with a cap ------------------------------------------------------------------- */

/* Counts what a message allocates; what does not fit is refused, and unpacking fails cleanly. The
 * size of a block stands before it: that of a string shows whether a NUL hides in it. */
struct budget {
    size_t left;
};

enum { BLOCK_HEADER = 16 }; /* bytes: room for a size_t, and alignment is kept */

static void *take(void *context, size_t bytes)
{
    struct budget *budget = context;

    if (bytes > budget->left)
        return NULL;
    unsigned char *block = malloc(bytes + BLOCK_HEADER);
    if (block == NULL)
        return NULL;
    budget->left -= bytes;
    memcpy(block, &bytes, sizeof bytes);
    return block + BLOCK_HEADER;
}

static void give(void *context, void *block)
{
    (void)context;
    if (block != NULL)
        free((unsigned char *)block - BLOCK_HEADER);
}

static ProtobufCAllocator capped(struct budget *budget)
{
    return (ProtobufCAllocator){ take, give, budget };
}

void zero_frame_release(struct zero_frame *frame)
{
    ProtobufCAllocator allocator = capped(NULL);

    if (frame->message != NULL)
        protobuf_c_message_free_unpacked(frame->message, &allocator);
    for (size_t i = 0; i < frame->fd_count; i++)
        if (frame->fds[i] >= 0)
            close(frame->fds[i]);
    frame->message = NULL;
    frame->fd_count = 0;
}

/* ---- checks --------------------------------------------------------------------------------- */

/* Bytes that a string came with, more than strlen says if it has a NUL inside. A string that did
 * not come is a literal, not a block. */
static size_t came_with(const char *text)
{
    size_t bytes;

    if (text == protobuf_c_empty_string)
        return 0;
    memcpy(&bytes, text - BLOCK_HEADER, sizeof bytes);
    return bytes - 1;
}

static bool text_allowed(const char *text, size_t most)
{
    return strlen(text) == came_with(text) && zero_text_printable(text, most);
}

static zero_status check_tensors(const Zero__V1__RegisterTensors *message,
                                 struct zero_detail *detail)
{
    if (!text_allowed(message->layer_name, ZERO_MAX_NAME))
        return refuse(detail, ZERO_PROTOCOL,
                      "a layer's name is longer than %d bytes or not printable UTF-8",
                      ZERO_MAX_NAME);
    if (message->n_tensors > ZERO_FRAME_MAX_TENSORS)
        return refuse(detail, ZERO_PROTOCOL, "%zu tensors in one frame, at most %d",
                      message->n_tensors, ZERO_FRAME_MAX_TENSORS);
    for (size_t t = 0; t < message->n_tensors; t++) {
        if (message->tensors[t]->n_shape > ZERO_MAX_DIMS)
            return refuse(detail, ZERO_PROTOCOL, "a tensor has %zu dimensions, at most %d",
                          message->tensors[t]->n_shape, ZERO_MAX_DIMS);
        if (!text_allowed(message->tensors[t]->name, ZERO_MAX_NAME))
            return refuse(detail, ZERO_PROTOCOL,
                          "a tensor's name is longer than %d bytes or not printable UTF-8",
                          ZERO_MAX_NAME);
    }
    return zero_success();
}

/* Any bytes but a NUL, as the kernel has it. */
static zero_status check_path(const ProtobufCBinaryData *path, size_t most,
                              struct zero_detail *detail)
{
    if (path->len > most || (path->len > 0 && memchr(path->data, '\0', path->len) != NULL))
        return refuse(detail, ZERO_PROTOCOL, "a path of %zu bytes, at most %zu, or with a NUL",
                      path->len, most);
    return zero_success();
}

static zero_status check_message(const struct zero_frame *frame, struct zero_detail *detail)
{
    const void *message = frame->message;

    switch (frame->type) {
    case ZERO_FRAME_REGISTER_CONFIG: {
        const Zero__V1__RegisterConfig *config = message;
        if (config->json.len > ZERO_CONFIG_MAX_BYTES)
            return refuse(detail, ZERO_PROTOCOL, "a config of %zu bytes, at most %d",
                          config->json.len, ZERO_CONFIG_MAX_BYTES);
        return zero_success();
    }
    case ZERO_FRAME_REGISTER_TENSORS:
        return check_tensors(message, detail);
    case ZERO_FRAME_REGISTERED: {
        const Zero__V1__Registered *registered = message;
        if (registered->blob.len > ZERO_RING_MAX_BLOB)
            return refuse(detail, ZERO_PROTOCOL, "a blob of %zu bytes, at most %d",
                          registered->blob.len, ZERO_RING_MAX_BLOB);
        return zero_success();
    }
    case ZERO_FRAME_SAVE_BEGIN:
        return check_path(&((const Zero__V1__SaveBegin *)message)->dir, ZERO_CONFIG_MAX_PATH - 1,
                          detail);
    case ZERO_FRAME_SAVE_ENDED:
        return check_path(&((const Zero__V1__SaveEnded *)message)->path, ZERO_FRAME_MAX_PATH,
                          detail);
    case ZERO_FRAME_ERROR: {
        const Zero__V1__Error *error = message;
        if (!text_allowed(error->text, ZERO_DETAIL_BYTES) || !zero_code_known(error->code))
            return refuse(detail, ZERO_PROTOCOL, "an error with code %u or a text that is no text",
                          error->code);
        return zero_success();
    }
    default:
        return zero_success();
    }
}

/* ---- one datagram --------------------------------------------------------------------------- */

static uint32_t little(const unsigned char *bytes, size_t count)
{
    uint32_t value = 0;

    for (size_t i = 0; i < count; i++)
        value |= (uint32_t)bytes[i] << (8 * i);
    return value;
}

zero_status zero_frame_decode(const void *bytes, size_t count, struct zero_frame *out,
                              struct zero_detail *out_detail)
{
    const unsigned char *in = bytes;
    struct budget budget = { ZERO_FRAME_UNPACKED };
    ProtobufCAllocator allocator = capped(&budget);
    struct zero_frame frame = { .fd_count = 0 };

    if (count < ZERO_FRAME_HEADER || in[0] != 'Z' || in[1] != 'R')
        return refuse(out_detail, ZERO_PROTOCOL, "%zu bytes that are no frame", count);
    uint32_t type = little(in + 2, 2), body = little(in + 4, 4);
    const ProtobufCMessageDescriptor *descriptor = zero_frame_descriptor(type);
    if (descriptor == NULL)
        return refuse(out_detail, ZERO_PROTOCOL, "frame type %u does not exist", type);
    if (count > ZERO_FRAME_MAX || body != count - ZERO_FRAME_HEADER)
        return refuse(out_detail, ZERO_PROTOCOL,
                      "a frame of %zu bytes says its body has %u (at most %d in all)", count, body,
                      ZERO_FRAME_MAX);
    frame.type = (enum zero_frame_type)type;
    frame.message = protobuf_c_message_unpack(descriptor, &allocator, body, in + ZERO_FRAME_HEADER);
    if (frame.message == NULL)
        return refuse(out_detail, ZERO_PROTOCOL,
                      "the body of a %s is broken or unpacks to too much", descriptor->short_name);
    zero_status s = check_message(&frame, out_detail);
    if (zero_failed(s)) {
        zero_frame_release(&frame);
        return s;
    }
    *out = frame;
    return s;
}

/* ---- sockets -------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until the socket is ready; DEADLINE if it is not by `end`. */
static zero_status wait_for(int socket, short events, int64_t end)
{
    for (;;) {
        int64_t left = end - now_ms();
        struct pollfd poll_fd = { .fd = socket, .events = events };
        int ready = poll(&poll_fd, 1, left < 0 ? 0 : (int)left);
        if (ready > 0)
            return zero_success();
        if (ready < 0 && errno != EINTR)
            return (zero_status){ ZERO_IO, "wait for socket" };
        if (ready == 0 && left <= 0)
            return (zero_status){ ZERO_DEADLINE, "wait for socket" };
    }
}

static zero_status closed_or_error(int error)
{
    bool closed = error == 0 || error == EPIPE || error == ECONNRESET || error == ENOTCONN;
    return (zero_status){ closed ? ZERO_DAEMON_LOST : ZERO_IO, "use socket" };
}

zero_status zero_frame_send(int socket, enum zero_frame_type type, const void *message,
                            const struct zero_frame_fds *fds, int deadline_ms)
{
    size_t body = protobuf_c_message_get_packed_size(message);
    size_t fd_count = fds ? fds->count : 0;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * ZERO_FRAME_MAX_FDS)] = { 0 };
    int64_t end = now_ms() + deadline_ms;

    if (body > ZERO_FRAME_MAX - ZERO_FRAME_HEADER || fd_count > ZERO_FRAME_MAX_FDS)
        return (zero_status){ ZERO_TOO_LARGE, "send frame" };
    unsigned char *bytes = malloc(ZERO_FRAME_HEADER + body);
    if (bytes == NULL)
        return (zero_status){ ZERO_NO_MEMORY, "send frame" };
    bytes[0] = 'Z';
    bytes[1] = 'R';
    for (size_t i = 0; i < 2; i++)
        bytes[2 + i] = (unsigned char)((uint32_t)type >> (8 * i));
    for (size_t i = 0; i < 4; i++)
        bytes[4 + i] = (unsigned char)(body >> (8 * i));
    protobuf_c_message_pack(message, bytes + ZERO_FRAME_HEADER);
    struct iovec part = { bytes, ZERO_FRAME_HEADER + body };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
    if (fd_count > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(cmsg), fds->fds, sizeof(int) * fd_count);
    }
    zero_status s = zero_success();
    while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EINTR)
            continue;
        s = errno == EAGAIN || errno == EWOULDBLOCK ? wait_for(socket, POLLOUT, end)
                                                    : closed_or_error(errno);
        if (zero_failed(s))
            break;
    }
    free(bytes);
    return s;
}

/* Moves the fds of one control message into the frame. False: there was no room for some. */
static bool take_some(struct cmsghdr *message, struct zero_frame *frame, size_t capacity)
{
    size_t count = (message->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    bool fits = true;

    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(message) + i * sizeof fd, sizeof fd);
        if (frame->fd_count < capacity) {
            frame->fds[frame->fd_count++] = fd;
        } else {
            close(fd);
            fits = false;
        }
    }
    return fits;
}

/* Moves the fds of a received header into the frame. False: more came than were wanted. */
static bool take_fds(struct msghdr *header, struct zero_frame *frame, size_t capacity)
{
    bool fits = (header->msg_flags & MSG_CTRUNC) == 0 || capacity == 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            fits = take_some(c, frame, capacity) && fits;
    return fits;
}

static void close_fds(struct zero_frame *frame)
{
    for (size_t i = 0; i < frame->fd_count; i++)
        close(frame->fds[i]);
    frame->fd_count = 0;
}

/* One datagram that is there already. */
static zero_status receive_now(int socket, size_t fd_capacity, struct zero_frame *out,
                               struct zero_detail *detail)
{
    unsigned char bytes[ZERO_FRAME_MAX + 1]; /* one more tells of too long */
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * ZERO_FRAME_MAX_FDS)];
    struct iovec part = { bytes, sizeof bytes };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
    struct zero_frame fds = { .fd_count = 0 };

    if (fd_capacity > 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
    }
    ssize_t count = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return (zero_status){ ZERO_DEADLINE, "wait for socket" };
    if (count < 0) {
        snprintf(detail->text, sizeof detail->text, "recvmsg: %s", strerror(errno));
        return closed_or_error(errno);
    }
    bool fits = take_fds(&header, &fds, fd_capacity);
    if (count == 0) { /* the end, or an empty datagram, which may bring fds */
        close_fds(&fds);
        snprintf(detail->text, sizeof detail->text, "the other side closed the connection");
        return closed_or_error(0);
    }
    zero_status s = fits ? zero_frame_decode(bytes, (size_t)count, out, detail)
                         : refuse(detail, ZERO_PROTOCOL, "more than %zu fds came", fd_capacity);
    if (zero_failed(s)) {
        close_fds(&fds);
        return s;
    }
    memcpy(out->fds, fds.fds, sizeof fds.fds[0] * fds.fd_count);
    out->fd_count = fds.fd_count;
    return s;
}

zero_status zero_frame_receive(int socket, size_t fd_capacity, int deadline_ms,
                               struct zero_frame *out, struct zero_detail *out_detail)
{
    int64_t end = now_ms() + deadline_ms;

    for (;;) {
        zero_status s = receive_now(socket, fd_capacity, out, out_detail);
        if (s.code == ZERO_DEADLINE && deadline_ms > 0)
            s = wait_for(socket, POLLIN, end);
        else if (s.code != ZERO_DEADLINE)
            return s;
        if (zero_failed(s)) {
            snprintf(out_detail->text, sizeof out_detail->text, "no frame came in %d ms",
                     deadline_ms);
            return s;
        }
    }
}
