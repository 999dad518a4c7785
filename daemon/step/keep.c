/* SPDX-License-Identifier: MIT */
#include "daemon/step/keep.h"

#include "daemon/base/process.h"

static void write_record(struct engine *e)
{
    journal_write(&e->journal, &e->record);
}

void keep_joined(struct engine *e)
{
    e->record.epoch = e->epoch;
    e->record.attempt = e->attempt;
    e->record.filled = e->filled;
    write_record(e);
}

void keep_filled(struct engine *e)
{
    e->record.filled = 1;
    write_record(e);
}

void keep_prepared(struct engine *e)
{
    e->record.prepared = e->step + 1;
    e->record.vote = e->vote;
    write_record(e);
}

void keep_dropped(struct engine *e)
{
    if (e->record.prepared == 0)
        return;
    e->record.prepared = 0;
    write_record(e);
}

void keep_decision(struct engine *e, const struct board_decision *decision)
{
    e->record.decision = *decision;
    e->record.scaler = e->scaler;
    write_record(e);
}

void keep_applied(struct engine *e)
{
    const struct board_decision *decision = &e->record.decision;

    e->record.step = decision->step;
    e->record.updates = decision->updates;
    e->record.skipped_in_row = decision->skipped_in_row;
    e->record.loss_scale = decision->next_scale;
    e->record.prepared = 0;
    e->record.blob_current = 1 - e->record.blob_current;
    write_record(e);
}

void keep_replicas(struct engine *e)
{
    e->record.replicas = e->record.decision.step;
    write_record(e);
}

void keep_trainer(struct engine *e, uint32_t pid)
{
    journal_set_trainer(&e->journal, pid, process_start(pid));
}
