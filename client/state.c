/* SPDX-License-Identifier: MIT */
/* Initial values in, state out. */
#include <inttypes.h>
#include <string.h>

#include "client/client.h"

enum { PIECE = 1 << 17 }; /* floats: half of the staging arena */

/* Where the tensor starts, when the span lies within it. */
static zero_status check_span(const zero_client *client, const struct zero_span *span,
                              uint64_t *out_first)
{
    uint64_t elements = 0;
    zero_status s = client_need(client, span, "span");

    if (!zero_failed(s))
        s = zero_tensor_place(client, span->layer, span->tensor, out_first, &elements);
    if (zero_failed(s))
        return s;
    if (span->count > elements || span->offset > elements - span->count)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "use tensor",
                           "the tensor has %" PRIu64 " elements, not %" PRIu64 " from %" PRIu64
                           " on",
                           elements, span->count, span->offset);
    return s;
}

static zero_status ask(zero_client *client, const struct call *call)
{
    zero_op op;

    if (client->role != ZERO_TRAINER || client->ring == NULL)
        return client_fail(client, ZERO_INVALID_STATE, "ask daemon",
                           "only a trainer that has registered may do this");
    zero_status s = ring_begin(client, call, &op);
    return zero_failed(s) ? s : ring_wait(client, op, call->call, NULL);
}

/* The daemon takes values that come late for ones that it has; whoever was told gives none. */
static zero_status check_filler(const zero_client *client)
{
    if (client->role != ZERO_TRAINER)
        return client_fail(client, ZERO_PERMISSION, "fill", "an observer may only read");
    if (client->info.filled)
        return client_fail(client, ZERO_INVALID_STATE, "fill",
                           "the model has its initial values already: fill only if "
                           "zero_client_info()->filled is false");
    return zero_success();
}

zero_status zero_fill_from(zero_client *client, enum zero_fill_source source)
{
    const struct call call = { .call = ZERO_CALL_FILL_FROM, .arg = { (uint64_t)source } };
    zero_status s = check_filler(client);

    return zero_failed(s) ? s : ask(client, &call);
}

zero_status zero_fill(zero_client *client, const struct zero_span *span, const float *values)
{
    uint64_t first = 0;
    zero_status s = check_span(client, span, &first);

    if (!zero_failed(s) && span->count > 0)
        s = client_need(client, values, "values");
    if (!zero_failed(s))
        s = check_filler(client);
    for (uint64_t done = 0; !zero_failed(s) && done < span->count;) {
        uint64_t now = span->count - done < PIECE ? span->count - done : PIECE;
        const struct call call = { .call = ZERO_CALL_FILL,
                                   .layer = span->layer,
                                   .arg = { span->tensor, span->offset + done, now, 0 } };
        memcpy(client->staging_map.base, values + done, now * sizeof *values);
        s = ask(client, &call);
        done += now;
    }
    return s;
}

zero_status zero_fill_end(zero_client *client)
{
    const struct call call = { .call = ZERO_CALL_FILL_END };
    zero_status s = ask(client, &call);

    if (!zero_failed(s))
        client->info.filled = true;
    return s;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Begun reads have a place each in the second half of staging; the first half is for whole calls.
 */
enum { PLACES = 64, PLACE_FLOATS = PIECE / PLACES };

static uint64_t place_offset(uint32_t place)
{
    return (PIECE + (uint64_t)place * PLACE_FLOATS) * sizeof(float);
}

zero_status zero_read_begin(zero_client *client, enum zero_state state,
                            const struct zero_span *span, zero_op *out)
{
    uint64_t first = 0;
    zero_status s = check_span(client, span, &first);
    uint32_t place = 0;

    if (!zero_failed(s))
        s = client_need(client, out, "out");
    if (zero_failed(s))
        return s;
    if (client->role != ZERO_TRAINER)
        return client_fail(client, ZERO_PERMISSION, "read state",
                           "an observer reads with zero_read");
    if (span->count > PLACE_FLOATS)
        return client_fail(client, ZERO_TOO_LARGE, "read state",
                           "a read that is begun has at most %d elements: use zero_read for more",
                           PLACE_FLOATS);
    while (place < PLACES && (client->read_places >> place & 1) != 0)
        place++;
    if (place == PLACES)
        return client_fail(client, ZERO_BUSY, "read state", "%d reads are begun already", PLACES);
    const struct call call = { .call = ZERO_CALL_READ,
                               .layer = span->layer,
                               .arg = { span->tensor | (uint64_t)state << 32, span->offset,
                                        span->count, place_offset(place) } };
    s = ring_begin(client, &call, out);
    if (!zero_failed(s))
        client->read_places |= UINT64_C(1) << place;
    return s;
}

static zero_status read_again(zero_client *client, const struct waiting *about)
{
    const struct call call = { .call = ZERO_CALL_READ,
                               .layer = about->layer,
                               .arg = { about->tensor, about->first, about->count,
                                        about->offset } };
    zero_op op;
    zero_status s = ring_begin(client, &call, &op);

    return zero_failed(s) ? s : ring_wait(client, op, ZERO_CALL_READ, NULL);
}

zero_status zero_read_wait(zero_client *client, zero_op op, float *to, uint64_t count)
{
    struct waiting about = { 0 };
    zero_status s = client_need(client, to, "to");

    if (zero_failed(s))
        return s;
    if (op.slot < ZERO_RING_SLOTS && client->waiting[op.slot].generation == op.generation)
        about = client->waiting[op.slot];
    s = ring_wait(client, op, ZERO_CALL_READ, NULL);
    while (s.code == ZERO_STEP_ABORTED && about.call == ZERO_CALL_READ) /* the daemon died: again */
        s = read_again(client, &about);
    if (s.code != ZERO_DAEMON_SILENT && s.code != ZERO_INTERRUPTED &&
        about.call == ZERO_CALL_READ && about.offset >= place_offset(0))
        client->read_places &=
            ~(UINT64_C(1) << (about.offset - place_offset(0)) / (PLACE_FLOATS * sizeof(float)));
    if (zero_failed(s))
        return s;
    if (count > about.count)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "read state",
                           "%llu elements were asked for, not %llu",
                           (unsigned long long)about.count, (unsigned long long)count);
    memcpy(to, (const char *)client->staging_map.base + about.offset, count * sizeof *to);
    return s;
}

static float widen(const void *from, zero_dtype dtype, uint64_t at)
{
    uint32_t bits;
    float value;

    if (dtype == ZERO_FP32)
        return ((const float *)from)[at];
    uint16_t half = ((const uint16_t *)from)[at];
    if (dtype == ZERO_BF16) {
        bits = (uint32_t)half << 16;
    } else {
        uint32_t exponent = half >> 10 & 31, fraction = half & 1023u, sign = (half & 0x8000u) << 16;
        if (exponent == 0) { /* zero or denormal: fraction * 2^-24, exact */
            value = (float)fraction * 0x1p-24f;
            return sign ? -value : value;
        }
        bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* An observer has the parameters of its version in sight and nothing else. */
static zero_status read_observed(zero_client *client, enum zero_state state,
                                 const struct zero_span *span, uint64_t first, float *to)
{
    const void *weights = NULL;

    if (state != ZERO_PARAM)
        return client_fail(client, ZERO_UNSUPPORTED, "read state",
                           "an observer sees parameters only (ZERO_PARAM)");
    zero_status s = zero_gather(client, span->layer, &weights);
    for (uint64_t i = 0; i < span->count && !zero_failed(s); i++)
        to[i] = widen(weights, client->info.param_dtype, first + span->offset + i);
    return s;
}

zero_status zero_read(zero_client *client, enum zero_state state, const struct zero_span *span,
                      float *to)
{
    uint64_t first = 0;
    zero_status s = check_span(client, span, &first);

    if (!zero_failed(s) && span->count > 0)
        s = client_need(client, to, "to");
    if (zero_failed(s))
        return s;
    if (client->role == ZERO_OBSERVER)
        return read_observed(client, state, span, first, to);
    for (uint64_t done = 0; done < span->count && !zero_failed(s);) {
        uint64_t now = span->count - done < PIECE ? span->count - done : PIECE;
        const struct call call = { .call = ZERO_CALL_READ,
                                   .layer = span->layer,
                                   .arg = { span->tensor | (uint64_t)state << 32,
                                            span->offset + done, now, 0 } };
        do
            s = ask(client, &call);
        while (s.code == ZERO_STEP_ABORTED); /* the daemon died: ask its successor */
        if (!zero_failed(s))
            memcpy(to + done, client->staging_map.base, now * sizeof *to);
        done += now;
    }
    return s;
}
