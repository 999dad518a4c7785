/* SPDX-License-Identifier: MIT */
/* Versions and checkpoints: what is copied while a group trains on is one whole step.
 *
 * One rank (either) copies the parameters of all ranks, at stage 3, into memory that observers map.
 * Meeting is one instant here: commit.pml has it in full.
 *
 * Options (-D): STEPS, CRASHES (of daemons), COPIES, HOLDERS (deaths of the holder; 0: nothing goes
 * to disk); BUG n: a planted fault:
 *   1  the copy goes on after the own vote
 *   2  the rank votes before what it began to copy is ended
 *   3  a copy begins before every rank has applied the step
 *   4  memory that an observer still reads is written again
 *   5  a version is handed out before it is whole
 *   6  after the holder's death a rank takes the newest part it has itself
 */
#define N 2
#ifndef STEPS
#define STEPS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef HOLDERS
#define HOLDERS 0
#endif
#ifndef COPIES
#define COPIES 2
#endif
#ifndef BUG
#define BUG 0
#endif
#define KEEP 2
#define TORN 99

mtype = { COLLECTING, VOTED, ROLLING, APPLIED, MEETING, RESTORING };

/* ---- ranks ---------------------------------------------------------------------------------- */

mtype phase[N] = COLLECTING;
byte content[N];  /* step of the own shard */
bool torn[N];     /* it is being updated */
byte step[N];     /* committed */
byte voted[N];    /* step */
byte decided;     /* step */
bool lost[N];     /* has not noticed yet that a rank is gone */
byte parts[N];    /* bit s: the own part of checkpoint s is on disk */

/* ---- the copy, and what observers map ------------------------------------------------------- */

byte copier;
bool copying;
byte slot, copied, copy_step;  /* copied: pieces that are in */
byte piece[KEEP * N];          /* step of each rank's shard in it */
byte version[KEEP];            /* step; of nothing while `whole` is off */
bool whole[KEEP];              /* handed out from now on */
byte readers[KEEP];

byte crashes, holders, copies;

#define P(k, j) piece[(k) * N + (j)]
#define both(f, x) (f[0] == (x) && f[1] == (x))
#define all_applied(s) (content[0] >= (s) && content[1] >= (s) && !torn[0] && !torn[1])
#define may_copy (copier == me && (phase[me] == COLLECTING || (BUG == 1 && phase[me] == VOTED) || \
                                   (BUG == 3 && phase[me] == APPLIED)))
#define unused(k) (!readers[k] || BUG == 4)

inline take_slot(k) {
    atomic {
        may_copy && !copying && copies < COPIES && unused(k) &&
        (!whole[k] || version[k] <= version[1 - k] || !whole[1 - k]) ->
        copies++; copying = 1; slot = k; copied = 0; whole[k] = 0;
        if
        :: BUG == 5 -> version[k] = step[me]; whole[k] = 1
        :: else
        fi
    }
}

inline copy_piece() {
    if
    :: copied == 0 -> copy_step = (phase[me] == APPLIED -> content[me] : step[me])
    :: else
    fi;
    P(slot, copied) = (torn[copied] -> TORN : content[copied]);
    copied++;
    if
    :: copied == N -> version[slot] = copy_step; whole[slot] = 1; copying = 0; copied = 0; slot = 0; copy_step = 0
    :: else
    fi
}

proctype Rank(byte me)
{
end_loop:
    do
    /* -- a version -- */
    :: take_slot(0)
    :: take_slot(1)
    :: atomic { may_copy && copying -> copy_piece() }

    /* -- a checkpoint: the own part of the committed step -- */
    :: atomic { HOLDERS && phase[me] == COLLECTING && !(parts[me] & (1 << step[me])) ->
        assert(content[me] == step[me] && !torn[me]);
        parts[me] = parts[me] | (1 << step[me]) }

    /* -- the step -- */
    :: atomic { phase[me] == COLLECTING && step[me] < STEPS && (copier != me || !copying || BUG == 1 || BUG == 2) ->
        phase[me] = VOTED; voted[me] = step[me] + 1 }
    :: atomic { me == 0 && phase[0] == VOTED && both(voted, step[0] + 1) && decided == step[0] -> decided++ }
    :: atomic { phase[me] == VOTED && decided > step[me] -> phase[me] = ROLLING; torn[me] = 1 }
    :: atomic { phase[me] == ROLLING -> torn[me] = 0; content[me] = decided; phase[me] = APPLIED }
    :: atomic { phase[me] == APPLIED && all_applied(decided) -> step[me] = decided; phase[me] = COLLECTING }

    /* -- deaths: a daemon's, its notice, and meeting again -- */
    :: atomic { crashes < CRASHES && phase[me] != MEETING && phase[me] != RESTORING ->
        crashes++;
        lost[1 - me] = (phase[1 - me] != MEETING); phase[me] = MEETING; lost[me] = 0;
        if
        :: copier == me -> copying = 0; copied = 0; slot = 0; copy_step = 0; whole[0] = 0; whole[1] = 0
        :: else
        fi }
    :: atomic { lost[me] && phase[me] != RESTORING ->
        lost[me] = 0; phase[me] = MEETING;
        if
        :: copier == me -> copied = 0 /* begins anew */
        :: else
        fi }
    :: atomic { both(phase, MEETING) ->
        voted[0] = 0; voted[1] = 0;
        phase[0] = (content[0] < decided -> ROLLING : APPLIED);
        phase[1] = (content[1] < decided -> ROLLING : APPLIED);
        torn[0] = (phase[0] == ROLLING); torn[1] = (phase[1] == ROLLING) }

    /* -- the holder's death: every rank starts from the newest checkpoint that all parts are of -- */
    :: atomic { phase[me] == RESTORING ->
        step[me] = STEPS;
        do
        :: step[me] == 0 -> break
        :: step[me] && (BUG != 6 && (parts[0] & parts[1] & (1 << step[me])) ||
                        BUG == 6 && (parts[me] & (1 << step[me]))) -> break
        :: else -> step[me]--
        od;
        content[me] = step[me]; decided = step[me];
        phase[me] = MEETING;
        assert(phase[1 - me] == RESTORING || step[0] == step[1]) }
    od
}

/* It maps a version, and reads it as slowly as it likes. */
proctype Observer()
{
    byte k, j, s;
end_loop:
    do
    :: atomic {
        if
        :: whole[0] -> k = 0
        :: whole[1] -> k = 1
        fi;
        readers[k]++; s = version[k] }
        do
        :: j < N -> atomic { assert(P(k, j) == s); j++ }
        :: else -> break
        od;
        atomic { readers[k]--; k = 0; j = 0; s = 0 }
    od
}

init {
    atomic {
        if
        :: copier = 0
        :: copier = 1
        fi;
        run Rank(0); run Rank(1);
        run Observer()
    }
    do
    :: atomic {
        holders < HOLDERS -> holders++;
        phase[0] = RESTORING; phase[1] = RESTORING;
        torn[0] = 0; torn[1] = 0; lost[0] = 0; lost[1] = 0; voted[0] = 0; voted[1] = 0;
        copying = 0; copied = 0; slot = 0; copy_step = 0; whole[0] = 0; whole[1] = 0 }
    :: timeout -> break
    od;
    assert(both(step, STEPS) && both(phase, COLLECTING))
}
