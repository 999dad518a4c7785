/* SPDX-License-Identifier: MIT */
/* watcher: an observer, for tests. Looks ROUNDS times at the parameters of the running training:
 * twice in each look, which must show the same bytes. With a second argument holds each look for so
 * many milliseconds. Prints one JSON object: {"looks":N,"steps":[first,last],"torn":N,"late":N}.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/zeroclient.h"

static zero_client *client;
static struct zero_detail detail;

static void must(zero_status s, const char *what)
{
    if (!zero_failed(s))
        return;
    fprintf(stderr, "%s: %s: %s\n", what, zero_code_name(s.code),
            client ? zero_error_text(client) : detail.text);
    exit(10);
}

/* The bytes of every layer, one after another, into `to`; how many. */
static size_t copy_params(char *to)
{
    const struct zero_client_info *info = zero_client_info(client);
    size_t bytes = 0;

    for (uint32_t l = 0; l < info->layer_count; l++) {
        uint64_t offset, count;
        const void *weights;
        must(zero_gather(client, l, &weights), "gather");
        for (uint32_t t = 0; !zero_failed(zero_tensor_place(client, l, t, &offset, &count)); t++) {
            size_t each = zero_dtype_bytes(info->param_dtype);
            if (to != NULL)
                memcpy(to + bytes, (const char *)weights + offset * each, count * each);
            bytes += count * each;
        }
        must(zero_release(client, l), "release");
    }
    return bytes;
}

int main(int argc, char **argv)
{
    const struct zero_attach_options options = { .role = ZERO_OBSERVER };
    long rounds = argc > 1 ? atol(argv[1]) : 10, hold_ms = argc > 2 ? atol(argv[2]) : 0;
    struct timespec hold = { hold_ms / 1000, hold_ms % 1000 * 1000000 };
    uint64_t first = 0;
    int torn = 0, late = 0;

    must(zero_attach(&options, &client, &detail), "attach");
    must(zero_register(client, NULL), "register");
    size_t bytes = copy_params(NULL);
    void *window;
    if (zero_window(client, 0, &window).code != ZERO_PERMISSION)
        return 11;
    char *one = malloc(bytes + 1), *two = malloc(bytes + 1);
    for (long i = 0; i < rounds; i++) {
        must(zero_observe_begin(client), "begin");
        if (i == 0)
            first = zero_client_info(client)->step;
        copy_params(one);
        nanosleep(&hold, NULL);
        copy_params(two);
        int differs = memcmp(one, two, bytes) != 0;
        zero_status s = zero_observe_end(client);
        if (s.code == ZERO_DEADLINE)
            late++;
        else if (!zero_failed(s))
            torn += differs;
        else
            must(s, "end");
    }
    printf("{\"looks\":%ld,\"steps\":[%" PRIu64 ",%" PRIu64 "],\"torn\":%d,\"late\":%d}\n", rounds,
           first, zero_client_info(client)->step, torn, late);
    zero_detach(client);
    free(one);
    free(two);
    return 0;
}
