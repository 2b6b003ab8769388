/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing until it is confirmed: letters are sent in their order as the sink has room, and sent
 * again after a pause if the sink lost them. The relay and `hapax redrive` publish so.
 *
 * The caller decides what follows a result: a letter that is LOST must be sent again, one that is
 * REFUSED may be.
 */
#ifndef HAPAX_BROKER_PUBLISH_H
#define HAPAX_BROKER_PUBLISH_H

#include "sink.h"

#include "base/heap.h"

#include <sys/queue.h>

/* One letter on its way, a member of what the caller publishes. Zeroed: not on its way. */
struct hapax__publication {
    TAILQ_ENTRY(hapax__publication) link; /* WAITING */
    struct hapax__timer pause; /* PAUSED */
    const struct hapax__letter *letter;
    enum {
        HAPAX__PUBLICATION_IDLE = 0,
        HAPAX__PUBLICATION_WAITING, /* to be sent, once the sink has room */
        HAPAX__PUBLICATION_PAUSED, /* to be sent again, after a pause */
        HAPAX__PUBLICATION_SENT /* the sink has it */
    } state;
    unsigned tries; /* sent again so often */
};

struct hapax__publisher {
    struct hapax__sink *sink;
    TAILQ_HEAD(, hapax__publication) waiting;
    struct hapax__heap paused;
};

/* The sink is borrowed. `most` is how many letters may be on their way at once. NOMEM. */
enum hapax_error hapax__publisher_init(struct hapax__publisher *publisher, struct hapax__sink *sink,
                                       size_t most);
void hapax__publisher_release(struct hapax__publisher *publisher);

/* Sends the letter, behind those that wait already. The letter is borrowed until its publication is
 * reaped or withdrawn; its tag is not used. */
void hapax__publish(struct hapax__publisher *publisher, struct hapax__publication *publication,
                    const struct hapax__letter *letter);

/* Sends the letter of a publication that was just reaped again, after a pause: min_us, doubled with
 * each try, at most max_us. */
void hapax__publish_again(struct hapax__publisher *publisher,
                          struct hapax__publication *publication, int64_t min_us, int64_t max_us);

/* Gives a letter up that was not sent, though the sink may have it. False: the letter may have been
 * sent, and will be reaped. */
bool hapax__publish_withdraw(struct hapax__publisher *publisher,
                             struct hapax__publication *publication);

/* Hands to the sink what is due, as far as the sink has room, and pumps the sink. */
void hapax__publisher_pump(struct hapax__publisher *publisher);

/* The next letter with a result, OK, REFUSED or LOST. NULL: none. */
struct hapax__publication *hapax__publisher_reap(struct hapax__publisher *publisher,
                                                 enum hapax__sent *sent);

/* When to pump without any event: 0 if a letter waits for room; INT64_MAX: never. */
int64_t hapax__publisher_due(const struct hapax__publisher *publisher);

#endif
