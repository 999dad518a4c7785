/* SPDX-License-Identifier: MIT */
#include "client/examples/state.h"

#include <openssl/evp.h>
#include <stdlib.h>

/* A whole tensor. */
static struct zero_span span_of(const struct layers *layers, uint32_t layer, uint32_t tensor)
{
    return (struct zero_span){ .layer = layer,
                               .tensor = tensor,
                               .count = layers_elements(&layers->spec[layer].tensors[tensor]) };
}

/* Room for the largest tensor. */
static float *room(const struct layers *layers)
{
    uint64_t most = 1;

    for (uint32_t l = 0; l < layers->count; l++)
        for (uint32_t t = 0; t < layers->spec[l].tensor_count; t++) {
            const struct zero_span span = span_of(layers, l, t);
            most = span.count > most ? span.count : most;
        }
    return calloc(most, sizeof(float));
}

zero_status state_fill(zero_client *client, const struct layers *layers, uint64_t seed)
{
    zero_status s = zero_success();
    uint64_t stream = seed;
    float *values = room(layers);

    if (values == NULL)
        return (zero_status){ ZERO_NO_MEMORY, "fill" };
    for (uint32_t l = 0; l < layers->count; l++)
        for (uint32_t t = 0; t < layers->spec[l].tensor_count && !zero_failed(s); t++) {
            const struct zero_span span = span_of(layers, l, t);
            layers_first_values(layers, l, t, &stream, values);
            s = zero_fill(client, &span, values);
        }
    free(values);
    return zero_failed(s) ? s : zero_fill_end(client);
}

zero_status state_hash(zero_client *client, const struct layers *layers, char hex[STATE_HEX])
{
    zero_status s = { ZERO_NO_MEMORY, "hash" };
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    float *values = room(layers);
    unsigned char sum[EVP_MAX_MD_SIZE];

    if (hash == NULL || values == NULL || !EVP_DigestInit_ex(hash, EVP_sha256(), NULL))
        goto out;
    for (uint32_t l = 0; l < layers->count; l++)
        for (uint32_t t = 0; t < layers->spec[l].tensor_count; t++) {
            const struct zero_span span = span_of(layers, l, t);
            s = zero_read(client, ZERO_MASTER, &span, values);
            if (zero_failed(s))
                goto out;
            EVP_DigestUpdate(hash, values, span.count * sizeof *values);
        }
    EVP_DigestFinal_ex(hash, sum, NULL);
    for (size_t i = 0; i < STATE_HEX / 2; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
out:
    free(values);
    EVP_MD_CTX_free(hash);
    return s;
}
