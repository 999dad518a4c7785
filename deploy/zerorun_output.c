/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_output.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CONGESTED_BYTES = 256 * 1024,
    /* A pipe that poll() calls writable takes this much without waiting: PIPE_BUF. */
    WRITE_BYTES = 4096,
    READ_BYTES = 16384,
    TEXT_BYTES = 8192
};

static const int sink_fd[SINK_COUNT] = { STDOUT_FILENO, STDERR_FILENO };

static void append(struct sink *sink, const char *text, size_t length)
{
    if (sink->error != 0)
        return;
    if (sink->used + length > sink->capacity) {
        size_t capacity = 2 * (sink->used + length);
        char *data = realloc(sink->data, capacity);
        if (data == NULL)
            return;
        sink->data = data;
        sink->capacity = capacity;
    }
    memcpy(sink->data + sink->used, text, length);
    sink->used += length;
}

/* Where a stream's text goes: one queue if both sinks are the same file, so that the order stays.
 */
static enum sink_id where(const struct output *output, enum sink_id id)
{
    return output->merged ? SINK_STDOUT : id;
}

static void append_prefix(struct output *output, const struct stream *stream)
{
    /* Colour numbers 2 to 6: green, yellow, blue, magenta, cyan. Daemons are faint. */
    struct sink *sink = &output->sinks[where(output, stream->sink)];
    char colour[16];
    const char *digit = strpbrk(stream->prefix, "0123456789");

    if (!output->colour || !sink->terminal || digit == NULL) {
        append(sink, stream->prefix, stream->prefix_length);
        return;
    }
    int n = stream->prefix[1] == 'z'
                ? snprintf(colour, sizeof colour, "\033[2m")
                : snprintf(colour, sizeof colour, "\033[3%lum", 2 + strtoul(digit, NULL, 10) % 5);
    append(sink, colour, (size_t)n);
    append(sink, stream->prefix, stream->prefix_length - 1);
    append(sink, "\033[0m ", 5);
}

static void remember(struct stream *stream, const char *text, size_t length)
{
    size_t keep = length < TAIL_BYTES / 2 ? length : TAIL_BYTES / 2;

    if (stream->tail_used + keep + 2 > TAIL_BYTES) {
        size_t drop = stream->tail_used + keep + 2 - TAIL_BYTES;
        const char *line = memchr(stream->tail + drop, '\n', stream->tail_used - drop);
        size_t from = line != NULL ? (size_t)(line + 1 - stream->tail) : stream->tail_used;
        memmove(stream->tail, stream->tail + from, stream->tail_used - from);
        stream->tail_used -= from;
    }
    memcpy(stream->tail + stream->tail_used, text, keep);
    stream->tail_used += keep;
    stream->tail[stream->tail_used++] = '\n';
    stream->tail[stream->tail_used] = '\0';
}

/* Prints a piece of a stream that ends in \n, in \r, or (end 0) not yet. */
static void emit(struct output *output, struct stream *stream, size_t length, char end)
{
    struct sink *sink = &output->sinks[where(output, stream->sink)];
    struct stream **cursor = &output->cursor[where(output, stream->sink)];

    if (*cursor != NULL && *cursor != stream) { /* somebody else's progress line is in the way */
        append(sink, sink->terminal ? "\r\033[K" : "\n", sink->terminal ? 4 : 1);
        (*cursor)->shown = false;
        *cursor = NULL;
    }
    bool continues = stream->shown || (length == 0 && *cursor == stream);
    if (!continues && (output->prefix || stream == &output->self))
        append_prefix(output, stream);
    append(sink, stream->line, length);
    if (end != 0)
        append(sink, &end, 1);
    if (end != 0 && length > 0)
        remember(stream, stream->line, length);
    stream->shown = end == 0;
    *cursor = end == '\n' ? NULL : stream;
}

static void feed(struct output *output, struct stream *stream, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '\n' && text[i] != '\r') {
            stream->line[stream->used++] = text[i];
            if (stream->used < LINE_BYTES)
                continue;
        }
        emit(output, stream, stream->used, text[i] == '\r' ? '\r' : '\n');
        stream->used = 0;
        stream->carriage = text[i] == '\r';
    }
    if (stream->carriage && stream->used > 0) { /* progress that begins with its \r */
        emit(output, stream, stream->used, 0);
        stream->used = 0;
    }
}

void output_init(struct output *output, bool prefix)
{
    const char *no_colour = getenv("NO_COLOR");
    struct stat st[SINK_COUNT];

    memset(output, 0, sizeof *output);
    output->merged = fstat(STDOUT_FILENO, &st[0]) == 0 && fstat(STDERR_FILENO, &st[1]) == 0 &&
                     st[0].st_dev == st[1].st_dev && st[0].st_ino == st[1].st_ino;
    for (int i = 0; i < SINK_COUNT; i++)
        output->sinks[i].terminal = isatty(sink_fd[i]) == 1;
    output->prefix = prefix;
    output->colour = no_colour == NULL || no_colour[0] == '\0';
    output->self.fd = -1;
    output->self.sink = SINK_STDERR;
    output->self.prefix_length = (size_t)snprintf(output->self.prefix, PREFIX_BYTES, "zerorun: ");
}

void output_deinit(struct output *output)
{
    for (int i = 0; i < SINK_COUNT; i++)
        free(output->sinks[i].data);
}

void output_say(struct output *output, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    output->self.line = text;
    emit(output, &output->self, n < 0 ? 0 : strlen(text), '\n');
    output->self.line = NULL;
}

void output_print(struct output *output, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(&output->sinks[SINK_STDOUT], text, n < 0 ? 0 : strlen(text));
}

bool output_congested(const struct output *output)
{
    return output->sinks[SINK_STDOUT].used > CONGESTED_BYTES ||
           output->sinks[SINK_STDERR].used > CONGESTED_BYTES;
}

int output_take_error(struct output *output)
{
    int error = output->error_taken ? 0 : output->sinks[SINK_STDOUT].error;

    output->error_taken = output->error_taken || error != 0;
    return error;
}

bool output_pending(const struct output *output, enum sink_id id)
{
    return output->sinks[id].used > 0;
}

static void drain(struct sink *sink, int fd)
{
    struct pollfd ready = { .fd = fd, .events = POLLOUT };
    size_t done = 0;

    while (done < sink->used && poll(&ready, 1, 0) > 0) {
        size_t length = sink->used - done < WRITE_BYTES ? sink->used - done : WRITE_BYTES;
        ssize_t n = write(fd, sink->data + done, length);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            break;
        if (n < 0) {
            sink->error = errno;
            done = sink->used;
            break;
        }
        done += (size_t)n;
    }
    sink->used -= done;
    if (sink->used > 0)
        memmove(sink->data, sink->data + done, sink->used);
}

void output_flush(struct output *output)
{
    for (int i = 0; i < SINK_COUNT; i++)
        drain(&output->sinks[i], sink_fd[i]);
}

bool stream_init(struct stream *stream, enum sink_id sink, const char *who, unsigned rank)
{
    stream->fd = -1;
    stream->sink = sink;
    stream->prefix_length =
        (size_t)snprintf(stream->prefix, sizeof stream->prefix, "[%s %u] ", who, rank);
    stream->line = malloc(LINE_BYTES);
    return stream->line != NULL;
}

void stream_open(struct stream *stream, int fd)
{
    stream->fd = fd;
    stream->used = 0;
    stream->carriage = false;
    stream->shown = false;
}

static void shut(struct output *output, struct stream *stream)
{
    struct stream **cursor = &output->cursor[where(output, stream->sink)];

    if (stream->used > 0 || *cursor == stream)
        emit(output, stream, stream->used, '\n');
    stream->used = 0;
    close(stream->fd);
    stream->fd = -1;
}

/* Returns how much came; -1 when nothing is there now, 0 at the end. */
static ssize_t take(struct output *output, struct stream *stream)
{
    char text[READ_BYTES];
    ssize_t n = read(stream->fd, text, sizeof text);

    if (n > 0)
        feed(output, stream, text, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        n = 0;
    return n;
}

void stream_read(struct output *output, struct stream *stream)
{
    if (stream->fd >= 0 && take(output, stream) == 0)
        shut(output, stream);
}

void stream_finish(struct output *output, struct stream *stream)
{
    /* What a pipe holds, and not more: a process that outlived the child may go on writing. */
    size_t left = 1 << 20;
    ssize_t n;

    while (stream->fd >= 0 && left > 0 && (n = take(output, stream)) > 0)
        left -= (size_t)n < left ? (size_t)n : left;
    if (stream->fd >= 0)
        shut(output, stream);
}

void stream_deinit(struct stream *stream)
{
    if (stream->fd >= 0)
        close(stream->fd);
    free(stream->line);
}
