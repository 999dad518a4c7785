/* SPDX-License-Identifier: MIT */
/* A frame has the bytes that protobuf prescribes, every cap holds at its edge, and no fd is lost.
 */
#include "proto/frame.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/zero/v1/session.pb-c.h"
#include "tests/unit/check.h"

/* ---- bytes, put together here by protobuf's encoding rules ---- */

enum { ROOM = 80000 };

struct bytes {
    unsigned char at[ROOM];
    size_t count;
};

static void add(struct bytes *b, const void *from, size_t count)
{
    memcpy(b->at + b->count, from, count);
    b->count += count;
}

static void add_varint(struct bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        b->at[b->count++] = (unsigned char)(value | 128);
    b->at[b->count++] = (unsigned char)value;
}

/* A field of wire type 2. */
static void add_field(struct bytes *b, unsigned number, const void *from, size_t count)
{
    add_varint(b, number << 3 | 2);
    add_varint(b, count);
    add(b, from, count);
}

static struct bytes begin(unsigned type)
{
    struct bytes b = { .count = 8 };

    b.at[0] = 'Z';
    b.at[1] = 'R';
    b.at[2] = (unsigned char)type;
    b.at[3] = (unsigned char)(type >> 8);
    return b;
}

static zero_code decode(struct bytes *b, struct zero_frame *out, const char *wanted)
{
    struct zero_detail detail = { "" };
    size_t body = b->count - 8;

    for (int i = 0; i < 4; i++)
        b->at[4 + i] = (unsigned char)(body >> (8 * i));
    unsigned char *exact = malloc(b->count); /* so that reading past it is seen */
    memcpy(exact, b->at, b->count);
    zero_status s = zero_frame_decode(exact, b->count, out, &detail);
    free(exact);
    if (wanted != NULL)
        CHECK_CONTAINS(detail.text, wanted);
    return s.code;
}

static void accepts(struct bytes *b)
{
    struct zero_frame frame = { .fd_count = 0 };

    CHECK(decode(b, &frame, NULL) == ZERO_OK);
    zero_frame_release(&frame);
}

static void refuses(struct bytes *b, const char *wanted)
{
    struct zero_frame frame = { .fd_count = 0 };

    CHECK(decode(b, &frame, wanted) == ZERO_PROTOCOL);
    CHECK(frame.message == NULL);
}

/* Hello{protocol: 1, role: 1}: fields 1 and 2, varints. */
static const unsigned char golden_hello[] = { 'Z', 'R', 1, 0, 4, 0, 0, 0, 0x08, 1, 0x10, 1 };

/* RegisterTensors{layer: 1, layer_name: "l", tensors: [{name: "w", shape: [3, 300], lr_scale: 1}]}
 */
static const unsigned char golden_tensors[] = { 'Z',  'R', 4,    0, 24,  0,    0,    0,
                                                0x08, 1,   0x12, 1, 'l', 0x1a, 17,   0x0a,
                                                1,    'w', 0x12, 3, 3,   0xac, 0x02, 0x19,
                                                0,    0,   0,    0, 0,   0,    0xf0, 0x3f };

static void golden_bytes_decode(void)
{
    struct zero_frame frame;
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(zero_frame_decode(golden_hello, sizeof golden_hello, &frame, &detail)));
    const Zero__V1__Hello *hello = (const Zero__V1__Hello *)frame.message;
    CHECK(frame.type == ZERO_FRAME_HELLO && hello->protocol == 1 && hello->role == 1);
    zero_frame_release(&frame);

    CHECK(!zero_failed(zero_frame_decode(golden_tensors, sizeof golden_tensors, &frame, &detail)));
    const Zero__V1__RegisterTensors *message = (const Zero__V1__RegisterTensors *)frame.message;
    CHECK(message->layer == 1 && strcmp(message->layer_name, "l") == 0 && message->n_tensors == 1);
    const Zero__V1__Tensor *tensor = message->tensors[0];
    CHECK(strcmp(tensor->name, "w") == 0 && tensor->n_shape == 2 && tensor->shape[0] == 3);
    CHECK(tensor->shape[1] == 300 && tensor->lr_scale >= 1 && tensor->lr_scale <= 1);
    zero_frame_release(&frame);
}

static void golden_bytes_are_sent(void)
{
    int pair[2];
    unsigned char got[64];
    Zero__V1__Hello hello = ZERO__V1__HELLO__INIT;
    Zero__V1__RegisterTensors message = ZERO__V1__REGISTER_TENSORS__INIT;
    Zero__V1__Tensor tensor = ZERO__V1__TENSOR__INIT, *tensors[] = { &tensor };
    uint64_t shape[] = { 3, 300 };
    char layer[] = "l", name[] = "w";

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    hello.protocol = hello.role = 1;
    CHECK(!zero_failed(zero_frame_send(pair[0], ZERO_FRAME_HELLO, &hello, NULL, 0)));
    CHECK(recv(pair[1], got, sizeof got, 0) == sizeof golden_hello);
    CHECK(memcmp(got, golden_hello, sizeof golden_hello) == 0);
    message.layer = 1;
    message.layer_name = layer;
    message.n_tensors = 1;
    message.tensors = tensors;
    tensor.name = name;
    tensor.n_shape = 2;
    tensor.shape = shape;
    tensor.lr_scale = 1;
    CHECK(!zero_failed(zero_frame_send(pair[0], ZERO_FRAME_REGISTER_TENSORS, &message, NULL, 0)));
    CHECK(recv(pair[1], got, sizeof got, 0) == sizeof golden_tensors);
    CHECK(memcmp(got, golden_tensors, sizeof golden_tensors) == 0);
    close(pair[0]);
    close(pair[1]);
}

static void headers_are_checked(void)
{
    struct zero_frame frame;
    unsigned char bytes[sizeof golden_tensors];

    for (size_t count = 0; count < sizeof golden_tensors; count++) {
        struct zero_detail detail = { "" };
        unsigned char *cut = malloc(count + 1);
        memcpy(cut, golden_tensors, count);
        CHECK(zero_frame_decode(cut, count, &frame, &detail).code == ZERO_PROTOCOL);
        CHECK(detail.text[0] != '\0');
        free(cut);
    }
    for (size_t i = 0; i < 8; i++) { /* every bit of the header counts */
        struct zero_detail detail = { "" };
        memcpy(bytes, golden_tensors, sizeof bytes);
        bytes[i] ^= 0x80;
        CHECK(zero_frame_decode(bytes, sizeof bytes, &frame, &detail).code == ZERO_PROTOCOL);
    }
    for (unsigned type = 0; type < 70000; type++)
        CHECK((zero_frame_descriptor(type) != NULL) == (type >= 1 && type <= 16));
    struct bytes nothing = begin(2);
    accepts(&nothing); /* all fields have their defaults */
}

static void sizes_are_capped(void)
{
    static char much[ROOM];
    struct bytes b = begin(3); /* RegisterConfig */
    add_field(&b, 1, much, 61440);
    accepts(&b);
    b = begin(3);
    add_field(&b, 1, much, 61441);
    refuses(&b, "61441");

    b = begin(6); /* Registered, field 17 */
    add_field(&b, 17, much, 65536);
    accepts(&b);
    b = begin(6);
    add_field(&b, 17, much, 65537);
    refuses(&b, "65537");

    b = begin(1); /* an unknown field is passed over, as long as the frame is not too large */
    add_field(&b, 9, much, 65536 + 4096 - 8 - 4);
    accepts(&b);
    b = begin(1);
    add_field(&b, 9, much, 65536 + 4096 - 8 - 3);
    refuses(&b, "69633");

    b = begin(3); /* a length inside that is not there */
    add(&b, "\x0a\xff\xff\xff\xff\x0f", 6);
    refuses(&b, "broken");
}

static void add_tensor(struct bytes *b, const char *name, size_t name_bytes, size_t dims)
{
    struct bytes tensor = { .count = 0 }, shape = { .count = 0 };

    for (size_t d = 0; d < dims; d++)
        add_varint(&shape, d + 1);
    add_field(&tensor, 1, name, name_bytes);
    add_field(&tensor, 2, shape.at, shape.count);
    add_field(b, 3, tensor.at, tensor.count);
}

static void arrays_are_capped(void)
{
    struct bytes b = begin(4);

    for (int t = 0; t < 4096; t++)
        add_tensor(&b, "t", 1, 2);
    accepts(&b);
    add_tensor(&b, "t", 1, 2);
    refuses(&b, "4097");
    b = begin(4);
    add_tensor(&b, "t", 1, 8);
    accepts(&b);
    b = begin(4);
    add_tensor(&b, "t", 1, 9);
    refuses(&b, "9 dimensions");
    b = begin(4);
    for (int t = 0; t < 34000; t++) /* two bytes each, a hundred unpacked */
        add(&b, "\x1a\0", 2);
    refuses(&b, "");
}

static void strings_are_checked(void)
{
    static const struct {
        const char *text;
        size_t bytes;
        bool good;
    } cases[] = {
        { "layer.0/weight", 14, true },
        { "", 0, true },
        { " ~", 2, true },
        { "\xc2\xa0", 2, true },         /* U+00A0 */
        { "\xdf\xbf", 2, true },         /* U+07FF */
        { "\xe0\xa0\x80", 3, true },     /* U+0800 */
        { "\xed\x9f\xbf", 3, true },     /* U+D7FF */
        { "\xee\x80\x80", 3, true },     /* U+E000 */
        { "\xf0\x90\x80\x80", 4, true }, /* U+10000 */
        { "\xf4\x8f\xbf\xbf", 4, true }, /* U+10FFFF */
        { "a\0b", 3, false },            /* would read as "a" */
        { "\0", 1, false },
        { "a\n", 2, false },
        { "\x1f", 1, false },
        { "\x7f", 1, false },
        { "\xc2\x80", 2, false }, /* control */
        { "\xc2\x9f", 2, false },
        { "\x80", 1, false }, /* starts in the middle */
        { "\xc3", 1, false }, /* ends in the middle */
        { "\xe2\x82", 2, false },
        { "\xf0\x9f\x98", 3, false },
        { "\xc1\xbf", 2, false }, /* too long for its value */
        { "\xe0\x9f\xbf", 3, false },
        { "\xf0\x8f\xbf\xbf", 4, false },
        { "\xed\xa0\x80", 3, false }, /* surrogates */
        { "\xed\xbf\xbf", 3, false },
        { "\xf4\x90\x80\x80", 4, false }, /* over U+10FFFF */
        { "\xf5\x80\x80\x80", 4, false },
        { "\xff", 1, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes layer = begin(4), tensor = begin(4), error = begin(10);
        add_field(&layer, 2, cases[i].text, cases[i].bytes);
        add_tensor(&tensor, cases[i].text, cases[i].bytes, 1);
        add(&error, "\x08\x03", 2);
        add_field(&error, 2, cases[i].text, cases[i].bytes);
        struct bytes *all[] = { &layer, &tensor, &error };
        for (size_t m = 0; m < 3; m++) {
            int before = check_failures;
            if (cases[i].good)
                accepts(all[m]);
            else
                refuses(all[m], "");
            if (check_failures != before)
                fprintf(stderr, "string %zu in message %zu\n", i, m);
        }
    }
}

static void lengths_of_strings_are_capped(void)
{
    static char name[256];
    struct bytes b = begin(4);

    memset(name, 'x', sizeof name);
    add_field(&b, 2, name, 255);
    add_tensor(&b, name, 255, 0);
    accepts(&b);
    b = begin(4);
    add_field(&b, 2, name, 256);
    refuses(&b, "layer");
    b = begin(4);
    add_tensor(&b, name, 256, 0);
    refuses(&b, "tensor");
    b = begin(10);
    add(&b, "\x08\x0c", 2); /* 12 is no code */
    refuses(&b, "code 12");
}

/* ---- fds ---- */

/* Bytes of any kind, as the kernel has paths, but for a NUL. */
static void paths_are_checked(void)
{
    static const struct {
        unsigned type;
        size_t most;
    } rows[] = { { ZERO_FRAME_SAVE_BEGIN, 1023 }, { ZERO_FRAME_SAVE_ENDED, 4095 } };
    static unsigned char path[5000];

    memset(path, 0xff, sizeof path);
    for (size_t i = 0; i < 2; i++) {
        struct bytes b = begin(rows[i].type);
        add_field(&b, 1, path, rows[i].most);
        accepts(&b);
        b = begin(rows[i].type);
        accepts(&b); /* none */
        b = begin(rows[i].type);
        add_field(&b, 1, path, rows[i].most + 1);
        refuses(&b, "a path of");
        b = begin(rows[i].type);
        add_field(&b, 1, "/a\0b", 4);
        refuses(&b, "a path of 4 bytes");
    }
}

static int open_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* A datagram with `count` times the same fd. */
static void send_raw(int socket, const void *bytes, size_t size, size_t count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * 250)] = { 0 };
    struct iovec part = { (void *)(uintptr_t)bytes, size };
    struct msghdr header = { .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (size_t i = 0; i < count; i++)
        memcpy(CMSG_DATA(c) + i * sizeof socket, &socket, sizeof socket);
    CHECK(sendmsg(socket, &header, 0) == (ssize_t)size);
}

static void fds_arrive(int pair[2])
{
    int pipe_fds[2];
    struct zero_frame frame;
    struct zero_detail detail;
    struct stat sent, got;
    Zero__V1__VersionOpened opened = ZERO__V1__VERSION_OPENED__INIT;
    int before = open_fds();

    CHECK(pipe2(pipe_fds, O_CLOEXEC) == 0);
    const int three[] = { pipe_fds[0], pipe_fds[1], pipe_fds[0] };
    const struct zero_frame_fds fds = { three, 3 };
    CHECK(!zero_failed(zero_frame_send(pair[0], ZERO_FRAME_VERSION_OPENED, &opened, &fds, 0)));
    CHECK(!zero_failed(zero_frame_receive(pair[1], 3, 1000, &frame, &detail)));
    CHECK(frame.type == ZERO_FRAME_VERSION_OPENED && frame.fd_count == 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK((fcntl(frame.fds[i], F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(fstat(three[i], &sent) == 0 && fstat(frame.fds[i], &got) == 0 &&
              sent.st_ino == got.st_ino && sent.st_dev == got.st_dev);
    }
    int taken = frame.fds[1];
    frame.fds[1] = -1;
    zero_frame_release(&frame);
    CHECK(fcntl(taken, F_GETFD) >= 0);
    close(taken);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    CHECK(open_fds() == before);
}

static void fds_that_were_not_asked_for_are_closed(int pair[2])
{
    static const struct {
        size_t sent, capacity;
        zero_code code;
    } cases[] = { { 3, 2, ZERO_PROTOCOL },     { 1, 0, ZERO_OK },           { 100, 0, ZERO_OK },
                  { 141, 140, ZERO_PROTOCOL }, { 250, 140, ZERO_PROTOCOL }, { 140, 140, ZERO_OK },
                  { 250, 4, ZERO_PROTOCOL } };
    struct zero_frame frame;
    struct zero_detail detail;
    int before = open_fds();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        send_raw(pair[0], golden_hello, sizeof golden_hello, cases[i].sent);
        zero_status s = zero_frame_receive(pair[1], cases[i].capacity, 1000, &frame, &detail);
        CHECK(s.code == cases[i].code);
        if (!zero_failed(s)) {
            CHECK(frame.fd_count == cases[i].capacity);
            zero_frame_release(&frame);
        }
        CHECK(open_fds() == before);
    }
    send_raw(pair[0], "ZR", 2, 5); /* what is no frame brings no fds either */
    CHECK(zero_frame_receive(pair[1], 5, 1000, &frame, &detail).code == ZERO_PROTOCOL);
    CHECK(open_fds() == before);
    send_raw(pair[0], "", 0, 5);
    CHECK(zero_frame_receive(pair[1], 5, 1000, &frame, &detail).code == ZERO_DAEMON_LOST);
    CHECK(open_fds() == before);
}

static void too_much_is_not_sent(int pair[2])
{
    static uint8_t much[ZERO_FRAME_MAX];
    int many[ZERO_FRAME_MAX_FDS + 1];
    const struct zero_frame_fds fds = { many, ZERO_FRAME_MAX_FDS + 1 };
    Zero__V1__RegisterConfig config = ZERO__V1__REGISTER_CONFIG__INIT;
    Zero__V1__VersionOpened opened = ZERO__V1__VERSION_OPENED__INIT;

    for (size_t i = 0; i < ZERO_FRAME_MAX_FDS + 1; i++)
        many[i] = pair[0];
    config.json.data = much;
    config.json.len = ZERO_FRAME_MAX - 8 - 3; /* its tag and length take 4 */
    CHECK(zero_frame_send(pair[0], ZERO_FRAME_REGISTER_CONFIG, &config, NULL, 0).code ==
          ZERO_TOO_LARGE);
    CHECK(zero_frame_send(pair[0], ZERO_FRAME_VERSION_OPENED, &opened, &fds, 0).code ==
          ZERO_TOO_LARGE);
}

static void a_socket_ends_or_is_full(int pair[2])
{
    struct zero_frame frame;
    struct zero_detail detail = { "" };
    Zero__V1__VersionOpened opened = ZERO__V1__VERSION_OPENED__INIT;
    unsigned char large[ZERO_FRAME_MAX + 2] = { 'Z', 'R' };
    zero_status s;

    CHECK(zero_frame_receive(pair[1], 0, 0, &frame, &detail).code == ZERO_DEADLINE);
    CHECK(zero_frame_receive(pair[1], 0, 10, &frame, &detail).code == ZERO_DEADLINE);
    CHECK(detail.text[0] != '\0');
    CHECK(send(pair[0], large, sizeof large, 0) == sizeof large);
    CHECK(zero_frame_receive(pair[1], 0, 1000, &frame, &detail).code == ZERO_PROTOCOL);
    do
        s = zero_frame_send(pair[0], ZERO_FRAME_VERSION_OPENED, &opened, NULL, 0);
    while (!zero_failed(s));
    CHECK(s.code == ZERO_DEADLINE); /* nobody reads */
    CHECK(zero_frame_send(pair[0], ZERO_FRAME_VERSION_OPENED, &opened, NULL, 10).code ==
          ZERO_DEADLINE);
    close(pair[1]);
    CHECK(zero_frame_send(pair[0], ZERO_FRAME_VERSION_OPENED, &opened, NULL, 10).code ==
          ZERO_DAEMON_LOST);
    CHECK(zero_frame_receive(pair[0], 0, 1000, &frame, &detail).code == ZERO_DAEMON_LOST);
    close(pair[0]);
}

int main(void)
{
    int pair[2];

    golden_bytes_decode();
    golden_bytes_are_sent();
    headers_are_checked();
    sizes_are_capped();
    arrays_are_capped();
    strings_are_checked();
    lengths_of_strings_are_capped();
    paths_are_checked();
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    fds_arrive(pair);
    fds_that_were_not_asked_for_are_closed(pair);
    too_much_is_not_sent(pair);
    a_socket_ends_or_is_full(pair);
    return check_done();
}
