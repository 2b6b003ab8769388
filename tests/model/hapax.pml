/* SPDX-License-Identifier: Apache-2.0
 *
 * Claim, lease, takeover, complete and lost reply, for one operation, in SPIN. Processes claim, run an
 * effect that no fence guards, and complete; any but the last may crash anywhere, any op or its reply
 * may be lost, and a lease may end at any time, so that a slow holder becomes a zombie. A handler
 * that crashes may have a door that sees its death and fails it. run.sh searches every interleaving
 * of it and of its bad variants (promise 13).
 *
 * What must hold:
 *   exclusion   no claim is granted while another's lease is live
 *   ownership   the outcome stored is of the attempt that holds the record
 *   agreement   all answers are equal
 *   permission  a handler runs for a claim that the store granted, and for no other
 *   hold        under hold the effect happens once at most
 *   no strand   the last process gets its answer; a deadlock is an error
 *
 * Policy: HOLD, else rerun. Bad variants: NO_TOKEN, TAKEOVER, LOST_IS_ABSENT, NEW_TOKEN,
 * ANSWER_FIRST, DEATH_RERUNS. SEEK_x makes reaching x an error, to show that x is reached. NO_TIME: no lease
 * ends and nobody crashes.
 */
#define CLIENTS 3
#define LOSSES  2
#ifdef NO_TIME
#define CRASHES 0
#else
#define CRASHES 2
#endif

mtype = { ABSENT, STARTED, COMPLETED, FAILED, UNKNOWN };
mtype = { NO_REPLY, CLAIMED, IN_FLIGHT, HAS_OUTCOME, IS_UNKNOWN, OK, LOST };

/* The record. */
mtype state = ABSENT;
byte token = 0;
byte attempt = 0;
byte outcome = 0;
bool over = false; /* its lease */

/* What only the observer knows. */
byte lease_of = 0;  /* whose lease is live */
byte effects = 0;
byte answered = 0;  /* the first answer given */
byte losses = 0;
byte crashes = 0;
#ifdef SEEK_DEATH
bool death = false;
#endif

inline grant(me, tok) {
    assert(lease_of == 0 || lease_of == me); /* exclusion */
#ifdef SEEK_TAKEOVER
    assert(state != STARTED);
#endif
#ifdef SEEK_DEATH
    assert(!death);
#endif
    state = STARTED;
    token = tok;
    attempt++;
    over = false;
    lease_of = me;
    mine = attempt;
    verdict = CLAIMED
}

inline store_claim(me, tok) {
    if
    :: state == ABSENT || (state == FAILED && token != tok) -> grant(me, tok)
    :: state == COMPLETED -> verdict = HAS_OUTCOME; got = outcome
    :: state == STARTED && token == tok -> verdict = CLAIMED; mine = attempt
    :: (state == FAILED || state == UNKNOWN) && token == tok -> verdict = LOST; got = 0
    :: state == STARTED && token != tok && !over -> verdict = IN_FLIGHT
    :: state == STARTED && token != tok && over ->
#if defined(HOLD) && !defined(TAKEOVER)
        state = UNKNOWN;
        verdict = IS_UNKNOWN
#else
        grant(me, tok)
#endif
    :: state == UNKNOWN && token != tok -> verdict = IS_UNKNOWN
    fi
}

#ifdef NO_TOKEN
#define HOLDS(tok) (state != ABSENT)
#else
#define HOLDS(tok) (state != ABSENT && token == tok)
#endif

inline lose() {
    verdict = LOST;
    got = (state == COMPLETED -> outcome : 0)
}

inline release(me) {
    if
    :: lease_of == me -> lease_of = 0
    :: else
    fi
}

inline store_complete(me, tok) {
    if
    :: HOLDS(tok) && (state == STARTED || state == UNKNOWN) ->
        assert(mine == attempt); /* ownership */
        state = COMPLETED;
        outcome = me;
        release(me);
        verdict = OK;
        got = outcome
    :: HOLDS(tok) && state == COMPLETED -> verdict = OK; got = outcome
    :: !HOLDS(tok) || state == FAILED -> lose()
    fi
}

inline store_fail(me, tok) {
    if
    :: HOLDS(tok) && state == STARTED -> state = FAILED; release(me); verdict = OK
    :: HOLDS(tok) && (state == FAILED || state == UNKNOWN) -> verdict = OK
    :: !HOLDS(tok) || state == COMPLETED -> lose()
    fi
}

inline store_death(me, tok) {
    if
    :: HOLDS(tok) && state == STARTED ->
#if defined(HOLD) && !defined(DEATH_RERUNS)
        state = UNKNOWN;
#else
        state = FAILED;
#endif
#ifdef SEEK_DEATH
        death = true;
#endif
        release(me);
        verdict = OK
    :: HOLDS(tok) && (state == FAILED || state == UNKNOWN) -> verdict = OK
    :: !HOLDS(tok) || state == COMPLETED -> lose()
    fi
}

inline store_renew(me, tok) {
    if
    :: HOLDS(tok) && state == STARTED -> over = false; lease_of = me; verdict = OK
    :: HOLDS(tok) && state == UNKNOWN -> verdict = OK
    :: !HOLDS(tok) || state == FAILED || state == COMPLETED -> lose()
    fi
}

/* An op that arrives, or not, and whose reply arrives, or not. */
#define ASK(op, me, tok)                                                  \
    if                                                                    \
    :: d_step { op(me, tok) }                                             \
    :: d_step { losses < LOSSES -> losses++; verdict = NO_REPLY }         \
    :: d_step { losses < LOSSES -> op(me, tok); losses++; verdict = NO_REPLY } \
    fi

#define MAY_CRASH(me)                                                     \
    if                                                                    \
    :: true                                                               \
    :: d_step { me != CLIENTS && crashes < CRASHES -> crashes++ }; goto dead \
    fi

/* A handler that crashes, and whose door may see that. */
#define MAY_DIE(me)                                                       \
    if                                                                    \
    :: true                                                               \
    :: d_step { me != CLIENTS && crashes < CRASHES -> crashes++ };        \
        if :: goto dying :: goto dead fi                                  \
    fi

inline answer(what) {
    d_step {
        assert(what != 0);
        assert(answered == 0 || answered == what); /* agreement */
#ifdef SEEK_REPLAY
        assert(answered == 0);
#endif
        answered = what
    }
}

inline effect() {
    d_step {
        assert(mine != 0); /* permission */
#ifdef HOLD
        effects++;
        assert(effects <= 1) /* hold */
#endif
    }
}

proctype Client(byte me) {
    byte tok = me;
    byte mine = 0;
    byte got = 0;
    mtype verdict = NO_REPLY;

claim:
    atomic {
        mine = 0;
        got = 0;
        verdict = NO_REPLY
    }
    MAY_CRASH(me);
    ASK(store_claim, me, tok);
    if
#if defined(LOST_IS_ABSENT)
    :: verdict == NO_REPLY -> goto handler
#elif defined(NEW_TOKEN)
    :: verdict == NO_REPLY -> tok = tok + CLIENTS; goto claim
#else
    :: verdict == NO_REPLY -> goto claim
#endif
    :: verdict == IN_FLIGHT -> (state != STARTED || over) -> goto claim
    :: verdict == HAS_OUTCOME -> answer(got); goto ended
    :: verdict == IS_UNKNOWN ->
#ifdef SEEK_UNKNOWN
        assert(false);
#endif
        goto ended
    :: verdict == CLAIMED -> goto handler
    :: verdict == LOST -> goto lost
    fi;

handler:
    MAY_DIE(me);
    if
    :: true
    :: ASK(store_renew, me, tok);
        if
        :: verdict == LOST -> goto lost
        :: else
        fi
    :: me != CLIENTS -> goto failing
    fi;
    effect();
    MAY_DIE(me);
#ifdef ANSWER_FIRST
    answer(me);
#endif

complete:
    ASK(store_complete, me, tok);
    if
    :: verdict == NO_REPLY -> MAY_CRASH(me); goto complete
    :: verdict == OK -> answer(got); goto ended
    :: verdict == LOST -> goto lost
    fi;

failing: /* nothing was run */
    ASK(store_fail, me, tok);
    if
    :: verdict == NO_REPLY -> MAY_CRASH(me); goto failing
    :: else -> goto ended
    fi;

dying: /* nothing of it will be run or written any more: its door says so */
    ASK(store_death, me, tok);
    if
    :: verdict == NO_REPLY -> MAY_CRASH(me); goto dying
    :: else -> goto dead
    fi;

lost: /* never our own answer; the last one asks until it has one */
#ifdef SEEK_LOST
    assert(got == 0);
#endif
    if
    :: got != 0 -> answer(got); goto ended
    :: got == 0 && me != CLIENTS -> goto ended
    :: got == 0 && me == CLIENTS -> tok = tok + CLIENTS; goto claim
    fi;

ended:
#ifndef HOLD
    assert(me != CLIENTS || (answered != 0 && state == COMPLETED));
#endif
dead: /* forgets, so that fewer states differ */
    atomic {
        tok = 0;
        mine = 0;
        got = 0;
        verdict = NO_REPLY
    }
}

active proctype Time() {
end:
    do
#ifdef NO_TIME
    :: false
#else
    :: d_step { state == STARTED && !over -> over = true; lease_of = 0 }
#endif
    od
}

init {
    byte i;

    atomic {
        for (i : 1 .. CLIENTS) {
            run Client(i)
        }
    }
}
