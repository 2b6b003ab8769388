/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters on their way to one sink: waiting → sent → reaped, and from there again by way of a
 * pause.
 *
 * Rejected: sending again inside the sinks. Only the caller knows whether a letter is still wanted:
 * a lease may be over, or the message be another consumer's by now.
 */
#include "publish.h"

#include "base/clock.h"
#include "base/time.h"

#include <assert.h>

enum hapax_error hapax__publisher_init(struct hapax__publisher *publisher, struct hapax__sink *sink,
                                       size_t most)
{
    publisher->sink = sink;
    TAILQ_INIT(&publisher->waiting);
    return hapax__heap_init(&publisher->paused, most);
}

void hapax__publisher_release(struct hapax__publisher *publisher)
{
    hapax__heap_release(&publisher->paused);
}

static void wait(struct hapax__publisher *publisher, struct hapax__publication *publication)
{
    publication->state = HAPAX__PUBLICATION_WAITING;
    TAILQ_INSERT_TAIL(&publisher->waiting, publication, link);
}

void hapax__publish(struct hapax__publisher *publisher, struct hapax__publication *publication,
                    const struct hapax__letter *letter)
{
    assert(publication->state == HAPAX__PUBLICATION_IDLE);
    publication->letter = letter;
    publication->tries = 0;
    wait(publisher, publication);
}

void hapax__publish_again(struct hapax__publisher *publisher,
                          struct hapax__publication *publication, int64_t min_us, int64_t max_us)
{
    int64_t pause_us = min_us;

    assert(publication->state == HAPAX__PUBLICATION_IDLE && publication->letter);
    for (unsigned i = 0; i < publication->tries && pause_us < max_us; i++)
        pause_us *= 2;
    publication->tries++;
    publication->state = HAPAX__PUBLICATION_PAUSED;
    hapax__heap_set(&publisher->paused, &publication->pause,
                    hapax__monotonic_us() + hapax__least(pause_us, max_us));
}

bool hapax__publish_withdraw(struct hapax__publisher *publisher,
                             struct hapax__publication *publication)
{
    struct hapax__sink *sink = publisher->sink;

    if (publication->state == HAPAX__PUBLICATION_SENT &&
        !(sink->type->withdraw && sink->type->withdraw(sink, publication)))
        return false;
    if (publication->state == HAPAX__PUBLICATION_WAITING)
        TAILQ_REMOVE(&publisher->waiting, publication, link);
    hapax__heap_clear(&publisher->paused, &publication->pause);
    publication->state = HAPAX__PUBLICATION_IDLE;
    return true;
}

void hapax__publisher_pump(struct hapax__publisher *publisher)
{
    struct hapax__publication *publication;
    struct hapax__timer *timer;
    int64_t now_us = hapax__monotonic_us();

    while ((timer = hapax__heap_take(&publisher->paused, now_us)))
        wait(publisher, HAPAX__TIMED(timer, struct hapax__publication, pause));
    while ((publication = TAILQ_FIRST(&publisher->waiting))) {
        struct hapax__letter letter = *publication->letter;

        letter.tag = publication;
        if (!publisher->sink->type->send(publisher->sink, &letter))
            break;
        TAILQ_REMOVE(&publisher->waiting, publication, link);
        publication->state = HAPAX__PUBLICATION_SENT;
    }
    publisher->sink->type->pump(publisher->sink);
}

struct hapax__publication *hapax__publisher_reap(struct hapax__publisher *publisher,
                                                 enum hapax__sent *sent)
{
    struct hapax__publication *publication;
    void *tag;

    *sent = publisher->sink->type->reap(publisher->sink, &tag);
    if (*sent == HAPAX__SENT_NOTHING)
        return NULL;
    publication = tag;
    assert(publication->state == HAPAX__PUBLICATION_SENT);
    publication->state = HAPAX__PUBLICATION_IDLE;
    return publication;
}

int64_t hapax__publisher_due(const struct hapax__publisher *publisher)
{
    return TAILQ_EMPTY(&publisher->waiting) ? hapax__heap_due_us(&publisher->paused) : 0;
}
