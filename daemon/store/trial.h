/* SPDX-License-Identifier: MIT */
/* trial.h: can a checkpoint be saved in a folder? Tried before a training begins, so that its first
 * save is not the first to hear that it cannot.
 *
 * Owns    nothing; what it makes is gone afterwards.
 * Thread  any; of one folder, one at a time.
 * Fails   IO, PERMISSION, NOT_FOUND, TOO_LARGE; the detail has the path and the reason.
 * Uses    error, folder.   Used by daemon.
 */
#ifndef DAEMON_STORE_TRIAL_H
#define DAEMON_STORE_TRIAL_H

#include "proto/status.h"

/* What a save does, with a file of a few bytes: makes DIR if need be, and in it a folder and a
 * file, which is written, brought to the disk, renamed and removed. */
zero_status store_try(const char *dir, struct zero_detail *out_detail);

#endif
