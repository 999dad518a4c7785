/* SPDX-License-Identifier: MIT */
/* No bytes make the frame decoder read or write where it must not, or unpack to more than its cap.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

enum { HEADER = 8, LARGEST = 1 << 17 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const uint8_t *data, size_t size)
{
    struct zero_frame frame;
    struct zero_detail detail = { "" };
    zero_status s = zero_frame_decode(data, size, &frame, &detail);

    if (zero_failed(s)) {
        if (detail.text[0] == '\0')
            abort();
        return;
    }
    if (zero_frame_descriptor((uint32_t)frame.type) != frame.message->descriptor)
        abort();
    zero_frame_release(&frame);
}

/* As it is, and then as the body of a frame whose header is right: a guess at the length would fail
 * nearly always. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode(data, size);
    if (size < HEADER || size > LARGEST)
        return 0;
    uint8_t *fitting = malloc(size);
    if (fitting == NULL)
        abort();
    memcpy(fitting, data, size);
    memcpy(fitting, "ZR", 2);
    fitting[2] = (uint8_t)(data[2] % 18);
    fitting[3] = 0;
    for (int i = 0; i < 4; i++)
        fitting[4 + i] = (uint8_t)((size - HEADER) >> (8 * i));
    decode(fitting, size);
    free(fitting);
    return 0;
}
