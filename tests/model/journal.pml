/* SPDX-License-Identifier: MIT */
/* The journal of one rank and the chunks of its updates: the daemon may die between any two stores.
 *
 * Options (-D): STEPS, CHUNKS, CRASHES, ABORTS; BUG n: a planted fault:
 *   1  no undo slot
 *   2  a chunk is named as begun before its old content is whole in the undo slot
 *   3  a chunk counts as done before it is
 *   4  a record is written over the newest one
 *   5  `newest` names a record before it is whole
 *   6  the blob of the next step is written over the committed one
 *   7  marks carry the chunk without the step
 *   8  the step is recorded as whole before its chunks are
 *   9  a record that was whole and not named when its daemon died is taken and not named
 */
#ifndef STEPS
#define STEPS 3
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef CRASHES
#define CRASHES 4
#endif
#ifndef ABORTS
#define ABORTS 2
#endif
#ifndef BUG
#define BUG 0
#endif

#define MARK(s, c) (BUG == 7 -> (c) + 1 : (s) * CHUNKS + (c))

/* ---- outlives the daemon -------------------------------------------------------------------- */

/* records 0 and 1 */
byte sequence[2], step[2], prepared[2], decision[2], current[2];
bool whole[2];                   /* its checksum holds */
byte newest;
byte begun, done;                /* marks */
byte blob[2], blob_torn[2];      /* of which step */
byte weight[CHUNKS], moment[CHUNKS]; /* updates that they have had; one from the old value of both */
byte undo_weight, undo_moment;

byte outside;                    /* the last decision of the group */
byte crashes, aborts;

/* ---- the daemon ----------------------------------------------------------------------------- */

inline may_die() {
    if
    :: crashes < CRASHES -> crashes++; goto start
    :: true
    fi
}

#define SLOT ((newest + 1 + (BUG == 4)) % 2)

inline write_record() {
    if
    :: BUG == 5 -> newest++; may_die();
        s = newest % 2; whole[s] = 0; may_die()
    :: else -> s = SLOT; whole[s] = 0; may_die()
    fi;
    atomic {
        sequence[s] = (BUG == 5 -> newest : newest + 1);
        step[s] = my_step; prepared[s] = my_prepared; decision[s] = my_decision; current[s] = my_current;
        whole[s] = 1
    }
    may_die();
    if
    :: BUG != 5 -> newest++
    :: else
    fi;
    may_die()
}

#define BLOB_GOOD(i) (!blob_torn[i])
#define GOOD(i) (whole[i] && BLOB_GOOD(current[i]) && (prepared[i] == 0 || BLOB_GOOD(1 - current[i])))

/* The newest whole record. */
inline open_journal() {
    atomic {
        assert(GOOD(0) || GOOD(1));
        if
        :: GOOD(0) && (!GOOD(1) || sequence[0] > sequence[1]) -> s = 0
        :: else -> s = 1
        fi;
        assert(sequence[s] >= newest);
        if
        :: BUG == 9
        :: else -> newest = sequence[s]
        fi;
        my_step = step[s]; my_prepared = prepared[s]; my_decision = decision[s]; my_current = current[s];
        assert(blob[my_current] == my_step);
        s = 0
    }
}

inline update_chunk() {
    if
    :: BUG == 1
    :: BUG != 1 && begun == MARK(my_decision, c) ->
        weight[c] = undo_weight; may_die();
        moment[c] = undo_moment; may_die()
    :: BUG != 1 && begun != MARK(my_decision, c) ->
        if
        :: BUG == 2 -> begun = MARK(my_decision, c); may_die()
        :: else
        fi;
        undo_weight = weight[c]; may_die();
        undo_moment = moment[c]; may_die()
    fi;
    begun = MARK(my_decision, c); may_die();
    if
    :: BUG == 3 -> done = MARK(my_decision, c) + 1; may_die()
    :: else
    fi;
    assert(weight[c] + 1 == my_decision && moment[c] + 1 == my_decision);
    weight[c]++; may_die();
    moment[c]++; may_die();
    done = MARK(my_decision, c) + 1; may_die()
}

inline apply() {
    if
    :: BUG == 8 -> my_step = my_decision; write_record()
    :: else
    fi;
    c = 0;
    do
    :: c < CHUNKS ->
        if
        :: MARK(my_decision, c) >= done -> update_chunk()
        :: else
        fi;
        c++
    :: else -> break
    od;
    for (c : 0 .. CHUNKS-1) { assert(weight[c] == my_decision && moment[c] == my_decision) }
    c = 0;
    my_step = my_decision; my_prepared = 0; my_current = 1 - my_current;
    write_record()
}

active proctype Daemon()
{
    byte my_step, my_prepared, my_decision, my_current;
    byte s, c;

    atomic { sequence[1] = 1; whole[1] = 1; newest = 1 }
start:
    open_journal();
    c = 0;
    /* the group meets: what was decided is rolled forward, what was not is over */
    assert(outside == my_step || (outside == my_step + 1 && my_prepared == outside));
    if
    :: outside > my_step && my_decision < outside -> my_decision = outside; write_record()
    :: outside == my_step && my_prepared != 0 -> my_prepared = 0; write_record()
    :: else
    fi;
    if
    :: my_decision > my_step -> apply()
    :: else
    fi;
    do
    :: my_step == STEPS -> break
    :: my_step < STEPS ->
        /* the trainer asks: its blob comes with the step */
        s = (BUG == 6 -> my_current : 1 - my_current);
        blob_torn[s] = 1; may_die();
        atomic { blob_torn[s] = 0; blob[s] = my_step + 1; }
        may_die();
        my_prepared = my_step + 1;
        write_record();
        if
        :: aborts < ABORTS -> aborts++; my_prepared = 0; write_record()
        :: outside = my_step + 1; may_die();
            my_decision = outside;
            write_record();
            apply()
        fi
    od
}
