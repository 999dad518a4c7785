/* SPDX-License-Identifier: MIT */
#include "daemon/store/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"

enum {
    DEPTH = 16,
    THREADS = 4,
    MOST_IDLE = 1000, /* results in a row that wrote nothing, then it is an error */
};

struct slot {
    struct store_block block;
    unsigned idle;
};

struct stream {
    struct store_job *job;
    struct slot slots[DEPTH];
    unsigned char *buffers; /* one a slot, when the job has sources */
    zero_status status;     /* the first failure */
    struct zero_detail *detail;
};

static zero_status prepare(struct stream *stream)
{
    bool sources = false;

    for (size_t i = 0; i < stream->job->stretch_count; i++)
        sources |= stream->job->stretches[i].base == NULL;
    if (!sources)
        return zero_success();
    stream->buffers = aligned_alloc(ZERO_PAGE_BYTES, (size_t)DEPTH * STORE_BLOCK_BYTES);
    if (stream->buffers == NULL)
        return store_refuse(stream->detail, ZERO_NO_MEMORY, "no memory for %d MiB of buffers",
                            DEPTH);
    for (size_t i = 0; i < DEPTH; i++)
        stream->slots[i].block.buffer = stream->buffers + i * STORE_BLOCK_BYTES;
    return zero_success();
}

/* What a write gave, a count or -errno. out_more: there is something left of the block. */
static zero_status take_result(struct stream *stream, struct slot *slot, int64_t result,
                               bool *out_more, struct zero_detail *detail)
{
    struct store_block *block = &slot->block;
    const char *name = stream->job->name;

    *out_more = true;
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        errno = (int)-result;
        return store_refuse_errno(detail, "%s cannot be written at byte %" PRIu64, name,
                                  block->offset);
    }
    size_t taken = result > 0 ? store_shorten_block(block, (size_t)result) : 0;
    slot->idle = taken > 0 ? 0 : slot->idle + 1;
    if (slot->idle > MOST_IDLE)
        return store_refuse(detail, ZERO_IO,
                            "%s takes no more bytes at %" PRIu64 ": the last try gave %" PRId64,
                            name, block->offset, result);
    if (taken > 0 && stream->job->progress != NULL)
        atomic_fetch_add(&stream->job->progress->bytes, taken);
    *out_more = block->bytes > 0;
    return zero_success();
}

/* ---- io_uring ---- */

static void queue(struct io_uring *ring, struct stream *stream, struct slot *slot)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring); /* as many as slots: there always is one */
    struct store_block *block = &slot->block;

    io_uring_prep_writev(sqe, stream->job->fd, &block->pieces[block->first],
                         block->count - block->first, block->offset);
    io_uring_sqe_set_data(sqe, slot);
}

/* The next block into a slot, and onto the ring; false when there is none or after a failure. */
static bool start_block(struct io_uring *ring, struct stream *stream, struct slot *slot)
{
    bool more = false;

    if (zero_failed(stream->status))
        return false;
    stream->status = store_next_block(stream->job, &slot->block, &more, stream->detail);
    if (zero_failed(stream->status) || !more)
        return false;
    slot->idle = 0;
    store_sum_block(stream->job, &slot->block);
    queue(ring, stream, slot);
    return true;
}

/* One completion; true while its slot is in flight again. */
static bool finish_block(struct io_uring *ring, struct stream *stream,
                         const struct io_uring_cqe *cqe)
{
    struct slot *slot = io_uring_cqe_get_data(cqe);
    struct zero_detail detail = { "" };
    bool more = false;
    zero_status s = take_result(stream, slot, cqe->res, &more, &detail);

    if (zero_failed(s) && !zero_failed(stream->status)) {
        stream->status = s;
        *stream->detail = detail;
    }
    if (zero_failed(stream->status))
        return false;
    if (!more)
        return start_block(ring, stream, slot);
    queue(ring, stream, slot);
    return true;
}

/* Memory may be given back only when the kernel is done with it: after a failure the rest is waited
 * for all the same. */
static void run_ring(struct io_uring *ring, struct stream *stream)
{
    unsigned flying = 0;

    while (flying < DEPTH && start_block(ring, stream, &stream->slots[flying]))
        flying++;
    while (flying > 0) {
        struct io_uring_cqe *cqe = NULL;
        int result = io_uring_submit_and_wait(ring, 1);
        if (result >= 0)
            result = io_uring_peek_cqe(ring, &cqe);
        if (result == -EINTR || result == -EAGAIN || result == -EBUSY)
            continue;
        if (result < 0) {
            /* not even what is in flight can be waited for; closing the ring cancels it */
            errno = -result;
            if (!zero_failed(stream->status))
                stream->status =
                    store_refuse_errno(stream->detail, "%s: io_uring stopped", stream->job->name);
            return;
        }
        flying -= !finish_block(ring, stream, cqe);
        io_uring_cqe_seen(ring, cqe);
    }
}

/* ---- threads ---- */

struct crew {
    struct stream *stream;
    pthread_mutex_t lock; /* of everything but the slots */
    unsigned joined;      /* slots taken */
};

static void stop_crew(struct crew *crew, zero_status s, const struct zero_detail *detail)
{
    pthread_mutex_lock(&crew->lock);
    if (!zero_failed(crew->stream->status)) {
        crew->stream->status = s;
        *crew->stream->detail = *detail;
    }
    pthread_mutex_unlock(&crew->lock);
}

static bool take_block(struct crew *crew, struct slot *slot)
{
    struct stream *stream = crew->stream;
    bool more = false;

    pthread_mutex_lock(&crew->lock);
    if (!zero_failed(stream->status))
        stream->status = store_next_block(stream->job, &slot->block, &more, stream->detail);
    more = more && !zero_failed(stream->status);
    pthread_mutex_unlock(&crew->lock);
    slot->idle = 0;
    return more;
}

static zero_status write_block(struct stream *stream, struct slot *slot, struct zero_detail *detail)
{
    struct store_block *block = &slot->block;
    bool more = true;

    store_sum_block(stream->job, block);
    while (more) {
        ssize_t result = pwritev(stream->job->fd, &block->pieces[block->first],
                                 (int)(block->count - block->first), (off_t)block->offset);
        zero_status s = take_result(stream, slot, result < 0 ? -errno : result, &more, detail);
        if (zero_failed(s))
            return s;
    }
    return zero_success();
}

static void *work(void *argument)
{
    struct crew *crew = argument;
    struct zero_detail detail = { "" };

    pthread_mutex_lock(&crew->lock);
    struct slot *slot = &crew->stream->slots[crew->joined++];
    pthread_mutex_unlock(&crew->lock);
    while (take_block(crew, slot)) {
        zero_status s = write_block(crew->stream, slot, &detail);
        if (zero_failed(s))
            stop_crew(crew, s, &detail);
    }
    return NULL;
}

/* The caller is one of them, so that it works where no thread can be had. */
static void run_threads(struct stream *stream)
{
    struct crew crew = { .stream = stream, .lock = PTHREAD_MUTEX_INITIALIZER };
    pthread_t threads[THREADS - 1];
    unsigned started = 0;

    while (started < THREADS - 1 && pthread_create(&threads[started], NULL, work, &crew) == 0)
        started++;
    work(&crew);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&crew.lock);
}

zero_status store_stream(struct store_job *job, enum store_engine *out_engine,
                         struct zero_detail *out_detail)
{
    struct stream *stream = calloc(1, sizeof *stream);
    struct io_uring ring;
    zero_status s;

    if (stream == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for %zu bytes", sizeof *stream);
    stream->job = job;
    stream->detail = out_detail;
    stream->status = zero_success();
    s = prepare(stream);
    if (zero_failed(s))
        goto out;
    int result = io_uring_queue_init(DEPTH, &ring, 0);
    *out_engine = result == 0 ? STORE_IO_URING : STORE_THREADS;
    if (result == 0) {
        run_ring(&ring, stream);
        io_uring_queue_exit(&ring);
    } else {
        run_threads(stream);
    }
    s = stream->status;
out:
    free(stream->buffers);
    free(stream);
    return s;
}
