/* SPDX-License-Identifier: Apache-2.0
 *
 * The pulse: the one thread of a C door that drives its flows. Callers' threads run handlers and
 * otherwise sit and wait, or have an ear that hears what they are told; whatever a flow says is done by the pulse. A call is the caller's until
 * hapax__pulse_begin() and the pulse's from then on: it may outlive its caller's answer, while its
 * outcome is still being stored.
 */
#ifndef HAPAX_DOOR_PULSE_H
#define HAPAX_DOOR_PULSE_H

#include "attempt.h"
#include "lane/lane.h"

#include <pthread.h>
#include <semaphore.h>

/* ---- calls --------------------------------------------------------------------------- */

struct hapax__pulse;
struct hapax__seat;

/* Who hears what seats are told, instead of a thread that waits in each. */
struct hapax__ear {
    /* In the pulse's thread, with what one turn of it has for this ear, by next; in parts where others are told something between.
     * Those told ANSWER are the hearer's from here on. It must not block; the ear stays until it has returned. */
    void (*hear)(struct hapax__ear *ear, struct hapax__seat *seats);
};

/* Where a caller sits while the pulse drives its call. It stays where it is. */
struct hapax__seat {
    sem_t wake; /* not a lock and a condition: who wakes up would wait for the lock at once */
    struct hapax__ear *ear; /* NULL: hapax__seat_wait() */
    enum hapax__flow_do told; /* PAUSE: nothing yet; RUN, RECONCILE or ANSWER */
    struct hapax__seat *next; /* the pulse's, until it is woken or heard */
    struct hapax_answer answer; /* with ANSWER: the caller's */
    enum hapax_error error; /* with ANSWER: NOMEM, there is an answer but no memory for it */
};

struct hapax__call {
    /* the caller fills these in */
    struct hapax_policy policy;
    struct hapax__flow_request request; /* its scope points to `scope` */
    uint8_t scope[HAPAX_SCOPE_MAX];
    struct hapax__seat *seat; /* NULL once answered */

    /* the handler's, while told RUN or RECONCILE */
    struct hapax_attempt attempt;

    /* the pulse's */
    enum hapax_class cls;
    bool begun;
    struct hapax__pulse *pulse; /* that drives it */
    struct hapax__call *next; /* in the inbox */
    size_t timer; /* its place among the timers, from 1; 0: none */
    int64_t wake_us;
    struct hapax__flow flow;
    struct hapax__job job;
};

void hapax__seat_init(struct hapax__seat *seat, struct hapax__ear *ear);
void hapax__seat_release(struct hapax__seat *seat);

/* Takes the pulse's word: waits for it; or, with an ear, takes what was heard. */
enum hapax__flow_do hapax__seat_wait(struct hapax__seat *seat);
enum hapax__flow_do hapax__seat_heard(struct hapax__seat *seat);

/* Frees a call that was not begun. */
void hapax__call_free(struct hapax__call *call);

/* ---- the pulse ----------------------------------------------------------------------- */

#define HAPAX__CALLS_MAX (1u << 20)

/* Starts the thread. On failure (NOMEM) *out is NULL and the lane is still yours, else it is the
 * pulse's. calls_max: 1 to HAPAX__CALLS_MAX. */
enum hapax_error hapax__pulse_open(struct hapax__pulse **out, struct hapax__lane *lane,
                                   uint32_t calls_max);

/* Begins a call, from malloc(). False: calls_max is reached, and the call is still yours. Each
 * call begun is matched by one hapax__pulse_leave(), once its seat was told ANSWER. */
bool hapax__pulse_begin(struct hapax__pulse *pulse, struct hapax__call *call);

/* The handler, or the hook, has ended. */
void hapax__pulse_ended(struct hapax__pulse *pulse, struct hapax__call *call, enum hapax_class cls);

/* The caller takes its answer and goes; `text` gets the store's last words where the answer has an
 * error, else "". */
void hapax__pulse_leave(struct hapax__pulse *pulse, const struct hapax_answer *answer,
                        char text[HAPAX_TEXT_MAX]);

/* Waits until no caller is left, and for what is still being stored, until save_wait_ms is over;
 * then stops the rest, closes the lane, ends the thread. Returns the outcomes not stored. */
uint32_t hapax__pulse_close(struct hapax__pulse *pulse, int64_t save_wait_ms);

#endif
