/* SPDX-License-Identifier: MIT */
/* zerorun_output.h: what children print, line by line, with the name of who said it before it.
 *
 * Owns    the read ends of the children's pipes, and what waits to be written. Never waits for a
 *         reader: when one is slow the queue fills, congested() says so, and the children's pipes
 *         are left alone until it is written.
 * Thread  one.
 * Fails   a text for a sink that cannot be written is dropped; of stdout, take_error tells.
 * Used by zerorun's child and group.
 */
#ifndef DEPLOY_ZERORUN_OUTPUT_H
#define DEPLOY_ZERORUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

enum sink_id { SINK_STDOUT, SINK_STDERR, SINK_COUNT };

enum {
    LINE_BYTES = 65536, /* a longer line is broken here */
    TAIL_BYTES = 2048,
    PREFIX_BYTES = 48
};

struct sink {
    bool terminal;
    int error; /* of the write that failed, after which nothing is written */
    char *data;
    size_t used, capacity;
};

/* One pipe of a child. */
struct stream {
    int fd; /* -1: closed */
    enum sink_id sink;
    char prefix[PREFIX_BYTES];
    size_t prefix_length;
    char *line; /* what has come of the line that is not ended yet */
    size_t used;
    bool carriage;         /* its last line ended in \r: it draws a progress line */
    bool shown;            /* the unended line is on the screen already */
    char tail[TAIL_BYTES]; /* its last lines, for a message */
    size_t tail_used;
};

struct output {
    struct sink sinks[SINK_COUNT];
    bool merged; /* stdout and stderr are one file: all goes to the first sink */
    /* Whose unended line the cursor is on. */
    struct stream *cursor[SINK_COUNT];
    struct stream self; /* zerorun's own lines */
    bool prefix, colour;
    bool error_taken;
};

void output_init(struct output *output, bool prefix);
void output_deinit(struct output *output);
/* "zerorun: ..." on stderr, behind what is queued there. */
__attribute__((format(printf, 2, 3))) void output_say(struct output *output, const char *format,
                                                      ...);
/* The same without a prefix on stdout. */
__attribute__((format(printf, 2, 3))) void output_print(struct output *output, const char *format,
                                                        ...);
bool output_congested(const struct output *output);
/* The errno of stdout's failure, once; 0 if there is nothing new. */
int output_take_error(struct output *output);
bool output_pending(const struct output *output, enum sink_id id);
/* Writes what can be written without waiting. */
void output_flush(struct output *output);

/* `who`: "trainer" or "zerod". Takes over the read end fd. */
bool stream_init(struct stream *stream, enum sink_id sink, const char *who, unsigned rank);
void stream_open(struct stream *stream, int fd);
/* Takes what is there; closes the stream at its end. */
void stream_read(struct output *output, struct stream *stream);
/* Takes what is still there, prints an unended line, closes. */
void stream_finish(struct output *output, struct stream *stream);
void stream_deinit(struct stream *stream);

#endif
