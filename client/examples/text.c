/* SPDX-License-Identifier: MIT */
#include "client/examples/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/examples/layers.h"

bool text_read(const char *path, struct text *out)
{
    FILE *file = fopen(path, "rb");
    struct stat facts;
    uint8_t *bytes = NULL;
    const char *why = "cannot be read whole";

    errno = 0;
    if (file == NULL || fstat(fileno(file), &facts) != 0)
        goto out;
    if (!S_ISREG(facts.st_mode)) {
        why = "is no regular file: every trainer reads it, a pipe would serve the first";
        goto out;
    }
    const size_t count = (size_t)facts.st_size;
    bytes = malloc(count + 1);
    if (bytes == NULL || fread(bytes, 1, count, file) != count)
        goto out;
    *out = (struct text){ bytes, count };
    fclose(file);
    return true;
out:
    fprintf(stderr, "gpt: %s: %s\n", path, errno != 0 ? strerror(errno) : why);
    free(bytes);
    if (file != NULL)
        fclose(file);
    return false;
}

void text_free(struct text *text)
{
    free(text->bytes);
    *text = (struct text){ NULL, 0 };
}

bool text_to_tokens(struct text *text, size_t seq)
{
    if (text->count < seq + 2) {
        fprintf(stderr, "gpt: the text has %zu bytes, sequences of %zu need at least %zu\n",
                text->count, seq, seq + 2);
        return false;
    }
    for (size_t i = 0; i < text->count; i++)
        if (text->bytes[i] >= VOCABULARY)
            text->bytes[i] = '?';
    return true;
}

void text_batch(const struct text *text, uint64_t step, size_t first, size_t count,
                const struct batch *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t state = 1000003 * step + first + i + 7;
        const uint8_t *from = text->bytes + splitmix64(&state) % (text->count - out->seq - 1);
        memcpy(out->in + i * out->seq, from, out->seq);
        memcpy(out->target + i * out->seq, from + 1, out->seq);
    }
}
