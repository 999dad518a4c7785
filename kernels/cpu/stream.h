/* SPDX-License-Identifier: MIT */
/* stream.h: asking for memory ahead, and stores that go past the caches, for memory that is not
 * read soon. An ordinary store reads the line from memory first.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Order   stream_end() before anybody else is told that the bytes are there.
 * Fails   never.
 * Uses    nothing.   Used by body.h, adam.h, sgd.h.
 */
#ifndef ZERO_KERNELS_CPU_STREAM_H
#define ZERO_KERNELS_CPU_STREAM_H

#include "kernels/element.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* A line of every cache there is here; and how far ahead memory is asked for. */
enum { STREAM_LINE = 64, STREAM_AHEAD = 2048 };

/* Asks for what comes STREAM_AHEAD bytes after these: the CPU's own prefetch ends at a page. Past
 * the end of an array it asks in vain, which harms nothing. */
ELEMENT_FN void prefetch_some(const void *from, size_t bytes)
{
    const char *at = from;

    for (size_t line = 0; line < bytes; line += STREAM_LINE)
        __builtin_prefetch(at + STREAM_AHEAD + line);
}

/* Whether there are such stores, and they can go there. */
ELEMENT_FN bool stream_possible(const void *to)
{
#if defined(__AVX512F__) || defined(__AVX2__)
    return (uintptr_t)to % STREAM_LINE == 0;
#else
    (void)to;
    return false;
#endif
}

/* `to` is aligned and bytes a multiple of the line. */
ELEMENT_FN void stream_lines(void *to, const void *from, size_t bytes)
{
#if defined(__AVX512F__)
    for (size_t at = 0; at < bytes; at += STREAM_LINE)
        _mm512_stream_si512((void *)((char *)to + at), _mm512_loadu_si512((const char *)from + at));
#elif defined(__AVX2__)
    for (size_t at = 0; at < bytes; at += STREAM_LINE) {
        const __m256i *line = (const void *)((const char *)from + at);
        __m256i *into = (void *)((char *)to + at);
        const __m256i low = _mm256_loadu_si256(line), high = _mm256_loadu_si256(line + 1);

        _mm256_stream_si256(into, low);
        _mm256_stream_si256(into + 1, high);
    }
#else
    memcpy(to, from, bytes);
#endif
}

ELEMENT_FN void stream_end(void)
{
#if defined(__AVX512F__) || defined(__AVX2__)
    _mm_sfence();
#endif
}

/* The same as memcpy. */
static void stream_copy(void *to, const void *from, size_t bytes)
{
    const size_t until = (size_t)(-(uintptr_t)to % STREAM_LINE);
    const size_t head = until < bytes ? until : bytes;
    const size_t body = (bytes - head) / STREAM_LINE * STREAM_LINE;
    char *into = to;
    const char *out_of = from;

    if (bytes == 0)
        return;
    memcpy(into, out_of, head);
    stream_lines(into + head, out_of + head, body);
    memcpy(into + head + body, out_of + head + body, bytes - head - body);
    stream_end();
}

#endif
