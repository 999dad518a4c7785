/* SPDX-License-Identifier: MIT */
#include "daemon/step/recall.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/shard/description.h"
#include "daemon/store/catalogue.h"

void recall_note(struct stats *stats, const struct store_facts *facts)
{
    uint64_t now = (uint64_t)time(NULL);
    uint64_t age = now > facts->time ? now - facts->time : 0;
    /* what reads it takes differences: from before the machine's start it is a negative number */
    uint64_t saved_ns = clock_ns() - age * UINT64_C(1000000000);

    stats_set(&stats->saved_step, facts->info.step);
    stats_set(&stats->saved_ns, saved_ns != 0 ? saved_ns : 1);
}

/* A folder may have checkpoints of a training that was there before. */
static bool is_own(const struct shard *shard, int description, const struct store_info *info)
{
    char *layout = zero_layout_text(info->layout), *config = NULL;
    size_t bytes = 0;
    bool same = layout != NULL && info->layout->world == shard->layout->world &&
                strncmp(shard->text, layout, strlen(layout)) == 0 &&
                !zero_failed(description_config(description, &config, &bytes)) &&
                bytes == info->config_bytes && memcmp(config, info->config, bytes) == 0;

    free(layout);
    free(config);
    return same;
}

void recall_saved(const struct shard *shard, int description, uint64_t step, struct stats *stats)
{
    const struct store_seek seek = { .dir = shard->config.checkpoint_dir, .before = step + 1 };
    struct zero_detail why = { "" };
    struct store *store = NULL;
    char *path = NULL;
    zero_status s = store_seek(&seek, &path, &why);

    if (!zero_failed(s))
        s = store_open(path, &store, &why);
    if (store_unread(s))
        LOG_WARNING("status cannot say which step was saved last: %s", why.text);
    if (!zero_failed(s) && is_own(shard, description, &store_facts(store)->info))
        recall_note(stats, store_facts(store));
    store_close(store);
    free(path);
}
