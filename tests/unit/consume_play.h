/* SPDX-License-Identifier: Apache-2.0
 *
 * A broker that is played: a source and a sink in memory, behind the seams of src/broker, that do
 * what brokers do to their consumers. Connections are lost; messages that were not acknowledged
 * then come again. Letters are refused, lost, or published with their confirmation lost. All of it
 * happens by chances of a seed, or when a test asks for it.
 *
 * It judges nothing, and keeps every message and letter for the test to look at. One at a time: the
 * URI is `played:Q`.
 */
#ifndef HAPAX_TESTS_CONSUME_PLAY_H
#define HAPAX_TESTS_CONSUME_PLAY_H

#include "broker/sink.h"
#include "broker/source.h"

#include <pthread.h>
#include <stdatomic.h>

#define PLAY_HEADERS_MAX 16

struct play_message {
    struct play_message *next;
    enum { PLAY_WAITS, PLAY_OUT, PLAY_DONE } state;
    char to[32]; /* "Q": in the queue; else a dead or parked letter */
    char order[16];
    char body[64];
    struct hapax_message_header headers[PLAY_HEADERS_MAX];
    size_t header_count;
    int64_t due_us; /* not delivered before */
    int64_t delay_ms; /* of a letter to the queue */
    unsigned deliveries;
    int number; /* as published; copies have it too */
};

struct play_chances { /* of 1000 */
    unsigned cut; /* at each pump: the connection is lost */
    unsigned refused, lost, lost_published; /* letters */
    unsigned late; /* a letter's result is known later */
    unsigned full; /* send() has no room */
};

struct play {
    pthread_mutex_t lock; /* of all that follows, but where said */
    struct hapax__source source;
    struct hapax__sink sink;
    struct hapax__source_type type; /* may be changed before the consumer opens it */
    struct play_message *first, **end;
    struct play_message *head; /* none before it is to be delivered */
    struct play_out *outs;
    struct play_letter *letters; /* with the sink */
    struct play_chances chances;
    uint64_t random;
    size_t room; /* as of the last pump */
    unsigned out_count, out_most;
    unsigned letters_most;
    unsigned closed; /* of source and sink */
    unsigned rejected, returned, extended;
    bool gone; /* the queue is: pump() says REFUSED */
    bool stop_when_done; /* when all messages are done, stop_fd becomes readable */
    int stop_fd; /* for the consumer */
    int poke_fd;
    bool cut; /* asked for */
    void (*seen)(void *arg, const struct play_message *letter); /* one confirmed; under the lock */
    void *seen_arg;
};

/* A broker, and the one that `played:` means. */
void play_open(struct play *play, uint64_t seed);
void play_close(struct play *play);

/* A message in the queue. key: its Idempotency-Key, NULL: none. order: NULL: none. Any thread. */
struct play_message *play_publish(struct play *play, int number, const char *key, const char *order,
                                  const char *body);
void play_header(struct play_message *message, const char *name, const char *value);

/* Takes a letter and publishes it to the queue, as a redrive does. */
void play_put_back(struct play *play, struct play_message *letter);

/* The next connection loss comes at once. Any thread. */
void play_cut(struct play *play);
void play_stop(struct play *play);

/* How many letters there are to this name ("Q.dead"). For "Q": how many messages are not done. */
unsigned play_count(struct play *play, const char *to);
/* The n-th letter to this name; NULL: none. */
struct play_message *play_letter(struct play *play, const char *to, unsigned n);
/* The value of a header as text; "": none. */
const char *play_value(const struct play_message *message, const char *name);

uint32_t play_random(struct play *play, uint32_t below);

#endif
