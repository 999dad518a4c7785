/* SPDX-License-Identifier: MIT */
/* The commit rule: every daemon and every trainer may die at any instant.
 *
 * Options (-D): N ranks, STEPS, CRASHES deaths in all, UPGRADES, SKIPS, STAGE 0, 1 (as 2) or 3;
 * TRAINERS 0: a rank asks for its step by itself (for three ranks); BUG n: a planted fault:
 *   1  rank 0 publishes a decision before its journal has it
 *   2  no undo slot: a chunk that a death tore stays torn
 *   3  votes carry the step, not the attempt: one of before a death is counted
 *   4  prepared gradients are dropped by a restart
 *   5  a restarted daemon welcomes a trainer while the outcome of its step is not known
 *   6  a rank that voted drops the step by itself when the group is lost
 *   7  a rank does not wait for the others' applied before parameters are read
 *   8  an upgrade answers before it commits
 *   9  rank 0 aborts while a rank has not followed the last decision yet
 *  10  attempts of a new epoch are counted on from the rank's own, not from the group's last
 *  11  a rank that has sent its ready is not looked at until the join is over
 */
#ifndef N
#define N 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef UPGRADES
#define UPGRADES 0
#endif
#ifndef SKIPS
#define SKIPS 0
#endif
#ifndef STAGE
#define STAGE 3
#endif
#ifndef TRAINERS
#define TRAINERS 1
#endif
#ifndef BUG
#define BUG 0
#endif

#define ATTEMPTS (10 * (CRASHES + UPGRADES + 2)) /* more: the ranks do not come to an end of meeting */

#define E(i, j) ((i) * N + (j))  /* rank i's end of its link to rank j */
#define VOTE (BUG == 3 -> es + 1 : att)

/* MEETING stands for a dead daemon too: its successor has not said anything yet. */
mtype = { MEETING, COLLECTING, SUMMING, VOTED, ROLLING, APPLIED };

/* ---- journals and arenas: outlive a daemon -------------------------------------------------- */

#define UPGRADE 1
#define SKIP 2

byte step[N];      /* last step whose update is whole */
byte prepared[N];  /* step whose gradients are summed and voted for; 0: none */
byte decision[N];  /* the last decision known: step after it, */
byte updates[N];   /* updates in it (a skipped step makes none), */
byte flags[N];     /* UPGRADE, SKIP */
byte replicas[N];  /* stages 1 and 2: updates in the parameters fetched from the others */
byte last[N];      /* last attempt begun */
byte content[N];   /* updates in the own shard */
bool torn[N];      /* a chunk is begun and not done; its old content is in the undo slot */

/* ---- boards: outlive a daemon, and every rank reads them ------------------------------------ */

byte attempt[N], asked[N], voted[N], applied[N], abort_wanted[N];
byte decided, decided_step, decided_updates, decided_flags; /* rank 0's; step 0: abort */

/* ---- links ---------------------------------------------------------------------------------- */

mtype phase[N] = MEETING;
byte link[N * N];    /* 0: none, 1: up, 2: the other side has closed it */
bool ready[N * N];   /* the peer's ready has come */
bool said[N * N];    /* own ready is sent */
/* the peer's hello */
byte told[N * N], told_step[N * N], told_prepared[N * N];
byte told_decision[N * N], told_updates[N * N], told_flags[N * N];

/* ---- trainers ------------------------------------------------------------------------------- */

bool session[N];         /* attached to the daemon that runs */
byte want[N] = TRAINERS; /* 1: a new trainer attaches, 2: the old one to a new daemon */
byte at[N];              /* steps it knows to be done, */
byte at_updates[N];      /* updates in them, */
byte at_attempt[N];      /* and the attempt it is in */
bool waits[N];           /* in zero_step */
bool request[N];         /* which the daemon has not read yet; of the attempt: */
byte request_attempt[N];
bool gone[N];            /* it died in this attempt, after it had submitted */

byte crashes, upgrades, skips;

#if N == 2
#define ALL(x) (x(0) && x(1))
#define linked (link[E(me, 1 - me)] != 0)
#define hung_up (link[E(me, 1 - me)] == 2)
#else
#define ALL(x) (x(0) && x(1) && x(2))
#define linked ((link[E(me, 0)] != 0) + (link[E(me, 1)] != 0) + (link[E(me, 2)] != 0))
#define hung_up (link[E(me, 0)] == 2 || link[E(me, 1)] == 2 || link[E(me, 2)] == 2)
#endif
#define has_joined(r) (r == me || (said[E(me, r)] && ready[E(me, r)] && (link[E(me, r)] == 1 || BUG == 11)))
#define in_attempt(r) (attempt[r] == att)
#define has_asked(r) (asked[r] >= att)
#define has_voted(r) (voted[r] == VOTE)
#define has_applied(r) (applied[r] >= decision[me])
#define wants_none(r) (abort_wanted[r] != att)

/* What a trainer reads while it computes: one whole step, the one it knows. */
#define computes(r) (TRAINERS && !want[r] && !waits[r])
#define own_whole(r) (!torn[r] && content[r] == at_updates[r])
#if STAGE == 3
#define ours_whole(r) (!torn[r] && content[r] == at_updates[j])
#define reads_whole(r) ALL(ours_whole)
#elif STAGE == 1
#define reads_whole(r) (own_whole(r) && replicas[r] == at_updates[r])
#else
#define reads_whole(r) own_whole(r)
#endif
inline check_readers() {
    for (j : 0 .. N-1) { assert(!computes(j) || reads_whole(j)) }
    j = 0
}

/* ---- meeting -------------------------------------------------------------------------------- */

inline forget(a, b) {
    link[E(a, b)] = 0; ready[E(a, b)] = 0; said[E(a, b)] = 0; forget_hello(a, b)
}

inline forget_hello(a, b) {
    told[E(a, b)] = 0; told_step[E(a, b)] = 0; told_prepared[E(a, b)] = 0;
    told_decision[E(a, b)] = 0; told_updates[E(a, b)] = 0; told_flags[E(a, b)] = 0
}

/* What the kernel does to the links of a process that ends. */
inline close_links() {
    for (j : 0 .. N-1) {
        if
        :: link[E(j, me)] == 1 -> link[E(j, me)] = 2
        :: else
        fi;
        forget(me, j)
    }
    j = 0
}

inline hello(a, b) {
    told[E(a, b)] = last[b]; told_step[E(a, b)] = step[b]; told_prepared[E(a, b)] = prepared[b];
    if
    :: b == 0 ->
        told_decision[E(a, b)] = decision[b]; told_updates[E(a, b)] = updates[b];
        told_flags[E(a, b)] = flags[b]
    :: else
    fi
}

/* The higher rank connects; the lower one takes the new link for the one it had. */
inline connect(r) {
    atomic {
        phase[me] == MEETING && r < me && link[E(me, r)] == 0 && phase[r] == MEETING ->
        forget(r, me);
        hello(me, r); link[E(me, r)] = 1;
        hello(r, me); link[E(r, me)] = 1
    }
}

/* A peer that gave up. */
inline drop(r) {
    atomic {
        phase[me] == MEETING && link[E(me, r)] == 2 && (BUG != 11 || !ready[E(me, r)]) ->
        forget(me, r)
    }
}

inline say_ready(r) {
    atomic {
        phase[me] == MEETING && r != me && linked == N - 1 && !said[E(me, r)] ->
        if
        :: link[E(me, r)] == 1 -> said[E(me, r)] = 1; ready[E(r, me)] = 1
        :: else -> forget(me, r)
        fi
    }
}

/* Every rank's step is rank 0's decision, or the one before with the gradients for it. */
inline agree() {
    hello(me, me);
    for (j : 0 .. N-1) {
        assert(told_step[E(me, j)] == told_decision[E(me, 0)] ||
               (told_step[E(me, j)] + 1 == told_decision[E(me, 0)] &&
                told_prepared[E(me, j)] == told_decision[E(me, 0)]));
        if
        :: BUG != 10 && told[E(me, j)] > att -> att = told[E(me, j)]
        :: else
        fi
    }
    att++;
    assert(att < ATTEMPTS);
    last[me] = att;
    if
    :: step[me] < told_decision[E(me, 0)] ->
        decision[me] = told_decision[E(me, 0)]; updates[me] = told_updates[E(me, 0)];
        flags[me] = told_flags[E(me, 0)]
    :: else -> assert(decision[me] == told_decision[E(me, 0)])
    fi;
    for (j : 0 .. N-1) { forget_hello(me, j); ready[E(me, j)] = 0; said[E(me, j)] = 0 }
    j = 0
}

/* ---- the daemon ----------------------------------------------------------------------------- */

inline end_process() {
    close_links();
    session[me] = 0; request[me] = 0; request_attempt[me] = 0; gone[me] = 0;
    phase[me] = MEETING;
    goto start
}

inline die() { atomic { crashes < CRASHES -> crashes++; end_process() } }

inline end_attempt() {
    att++;
    last[me] = att; attempt[me] = att;
    phase[me] = COLLECTING;
    fresh = 0; gone[me] = 0
}

#define CALLED (waits[me] && !request[me] && session[me])

inline answer_ok() {
    if
    :: CALLED ->
        assert(at[me] + 1 == decision[me]);
        at[me] = decision[me]; at_updates[me] = updates[me]; at_attempt[me] = att; waits[me] = 0;
        check_readers()
    :: else
    fi
}

inline drop_step() {
    prepared[me] = 0;
    end_attempt();
    if
    :: CALLED -> at_attempt[me] = att; waits[me] = 0
    :: else
    fi
}

inline attach() {
    if
    :: want[me] == 1 -> at[me] = es; at_updates[me] = eu
    :: want[me] == 2 && step[me] > at[me] ->   /* the step that it waits for was made */
        assert(step[me] == at[me] + 1);
        at[me] = step[me]; at_updates[me] = updates[me]
    :: else
    fi;
    at_attempt[me] = att; waits[me] = 0; want[me] = 0; session[me] = 1;
    check_readers()
}

/* The call of the trainer. What it computed is for the step after the one it knows. */
inline take_request() {
    request[me] = 0;
    if
    :: request_attempt[me] == att ->
        assert(phase[me] == COLLECTING && at[me] == es);
        asked[me] = att; phase[me] = SUMMING
    :: request_attempt[me] != att && CALLED -> at_attempt[me] = attempt[me]; waits[me] = 0
    :: else
    fi;
    request_attempt[me] = 0
}

#define OUTCOME_KNOWN (phase[me] == COLLECTING || (BUG == 5 && phase[me] == APPLIED && fresh))
#define MAY_DECIDE (me == 0 && phase[me] != MEETING && phase[me] != APPLIED && decided != att)
#define MAY_END (STAGE == 0 || BUG == 7 || flags[me] >= SKIP || ALL(has_applied))

proctype Daemon(byte me)
{
    byte att, es, eu;  /* attempt, step, updates in it: as the trainer knows them */
    byte f, u, j;
    bool fresh;        /* no attempt has ended in this process */
start:
    atomic {
        att = (attempt[me] > last[me] -> attempt[me] : last[me]);
        es = step[me]; eu = content[me];
        applied[me] = step[me];
        fresh = 1; f = 0; u = 0;
        if
        :: BUG == 4 -> prepared[me] = 0
        :: else
        fi
    }
end_loop:
    do
    :: die()

    /* -- meeting -- */
    :: connect(0)
    :: drop(0)
    :: drop(1)
    :: say_ready(0)
    :: say_ready(1)
#if N > 2
    :: connect(1)
    :: drop(2)
    :: say_ready(2)
#endif
    :: atomic { phase[me] == MEETING && ALL(has_joined) ->
        agree();
        if
        :: decision[me] == 0 -> drop_step()
        :: else -> phase[me] = ROLLING; goto roll
        fi }
    :: atomic { phase[me] != MEETING && hung_up ->
        if
        :: BUG == 6 && phase[me] == VOTED -> drop_step()
        :: else
        fi;
        close_links();
        phase[me] = MEETING }

    /* -- the trainer -- */
#if TRAINERS
    :: atomic { want[me] && !request[me] && !gone[me] && OUTCOME_KNOWN -> attach() }
    :: atomic { request[me] && phase[me] != MEETING -> take_request() }
    :: atomic { gone[me] && !request[me] && phase[me] == COLLECTING && wants_none(me) -> abort_wanted[me] = att }
#else
    :: atomic { phase[me] == COLLECTING && es < STEPS -> asked[me] = att; phase[me] = SUMMING }
#endif

    /* -- the step -- */
    :: atomic { phase[me] == SUMMING && ALL(has_asked) -> prepared[me] = es + 1 }
        if :: die() :: skip fi;
        atomic { phase[me] = VOTED; voted[me] = VOTE }
    :: atomic { MAY_DECIDE && (ALL(in_attempt) || BUG == 9) && !ALL(wants_none) ->
        decided_step = 0; decided_updates = 0; decided_flags = 0; decided = att }
    :: atomic { MAY_DECIDE && ALL(in_attempt) && ALL(wants_none) && ALL(has_voted) ->
        if
        :: upgrades < UPGRADES -> upgrades++; f = UPGRADE
        :: f = 0
        fi;
        if
        :: skips < SKIPS -> skips++; f = f + SKIP; u = updates[0]
        :: u = updates[0] + 1
        fi;
        if
        :: BUG == 1 -> decided_step = es + 1; decided_updates = u; decided_flags = f; decided = att
        :: else -> decision[0] = es + 1; updates[0] = u; flags[0] = f
        fi }
        if :: die() :: skip fi;
        atomic { decided_step = es + 1; decided_updates = u; decided_flags = f; decided = att; u = 0; f = 0 }
    :: atomic { phase[me] != MEETING && phase[me] != APPLIED && decided == att ->
        if
        :: decided_step == 0 -> drop_step()
        :: else ->
            assert(decided_step == es + 1 && prepared[me] == decided_step && step[me] == es);
            decision[me] = decided_step; updates[me] = decided_updates; flags[me] = decided_flags;
            if
            :: BUG == 8 && (flags[me] & UPGRADE) -> answer_ok()
            :: else
            fi;
            phase[me] = ROLLING;
            goto roll
        fi }
    :: atomic { phase[me] == APPLIED && MAY_END ->
        if
        :: STAGE == 1 && replicas[me] < updates[me] ->
            for (j : 0 .. N-1) { assert(!torn[j] && content[j] == updates[me]) }
            j = 0;
            replicas[me] = updates[me]
        :: else
        fi;
        if
        :: es == decision[me] -> drop_step()
        :: es < decision[me] && (flags[me] & UPGRADE) -> end_process()
        :: else ->
            es = decision[me]; eu = updates[me];
            end_attempt();
            answer_ok()
        fi }
    od;

roll:
    if
    :: step[me] < decision[me] ->
        if
        :: content[me] < updates[me] ->
            atomic {
                if
                :: BUG != 2 -> torn[me] = 0
                :: else
                fi;
                assert(!torn[me] && content[me] + 1 == updates[me]);
                torn[me] = 1;
                check_readers()
            }
            if :: die() :: skip fi;
            atomic { torn[me] = 0; content[me] = updates[me]; check_readers() }
            if :: die() :: skip fi
        :: else
        fi;
        atomic { step[me] = decision[me]; prepared[me] = 0 }
        if :: die() :: skip fi
    :: else
    fi;
    atomic { phase[me] = APPLIED; applied[me] = decision[me]; goto end_loop }
}

/* ---- the trainer ---------------------------------------------------------------------------- */

inline trainer_dies() {
    atomic {
        crashes < CRASHES -> crashes++;
        if
        :: session[me] && phase[me] == COLLECTING -> gone[me] = 1
        :: skip
        fi;
        session[me] = 0; waits[me] = 0; want[me] = 1
    }
}

proctype Trainer(byte me)
{
end_loop:
    do
    :: atomic { at[me] < STEPS && !want[me] && !waits[me] && session[me] ->
        waits[me] = 1; request[me] = 1; request_attempt[me] = at_attempt[me] }
    :: atomic { !want[me] && !session[me] -> want[me] = 2 }
    :: trainer_dies()
    od
}

#define done(r) (step[r] == STEPS && phase[r] == COLLECTING && (!TRAINERS || at[r] == STEPS))

init {
    byte r;
    atomic {
        for (r : 0 .. N-1) {
            run Daemon(r);
            if
            :: TRAINERS -> run Trainer(r)
            :: else
            fi
        }
        r = 0
    }
    timeout -> assert(ALL(done))
}
