/* SPDX-License-Identifier: MIT */
/* No bytes make the frame decoder read or write where it must not, or unpack to more than its cap.
 */
#include <stdint.h>
#include <stdlib.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct zero_frame frame;
    struct zero_detail detail = { "" };
    zero_status s = zero_frame_decode(data, size, &frame, &detail);

    if (zero_failed(s)) {
        if (detail.text[0] == '\0')
            abort();
        return 0;
    }
    if (zero_frame_descriptor((uint32_t)frame.type) != frame.message->descriptor)
        abort();
    zero_frame_release(&frame);
    return 0;
}
