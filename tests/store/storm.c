/* SPDX-License-Identifier: Apache-2.0
 *
 * One process of the storm, and the look back when it is over. A rule that is broken ends the
 * process by CHECK, and whoever started it notices that it ended by itself.
 */
#include "storm.h"

#include "../unit/record_diff.h"

#include <string.h>

#define LEASE_MS     50
#define IN_FLIGHT_MS 30000

struct hapax_span body_of(char text[BODY_MAX], unsigned who, unsigned key)
{
    int len = snprintf(text, BODY_MAX, "child %u did key %u %.*s", who, key, (int)(key % 30),
                       "------------------------------");

    return (struct hapax_span){(const uint8_t *)text, (size_t)len};
}

/* Some client's bytes for this very key. */
static bool is_body_of(struct hapax_span body, unsigned key)
{
    char copy[BODY_MAX], text[BODY_MAX];
    unsigned who;

    if (body.len >= sizeof(copy))
        return false;
    memcpy(copy, body.ptr, body.len);
    copy[body.len] = '\0';
    return sscanf(copy, "child %u ", &who) == 1 && same_bytes(body, body_of(text, who, key));
}

static unsigned long hash_of(const struct hapax_op *op)
{
    uint64_t hash = (uint64_t)op->record.outcome.status + 1;

    for (size_t i = 0; i < op->record.outcome.body.len; i++)
        hash = (hash ^ op->record.outcome.body.ptr[i]) * 0x100000001b3u;
    return (unsigned long)(hash | 1);
}

/* Whoever comes first says what the outcome of the key is; nobody may see another. */
static void agree(struct storm *storm, unsigned key, const struct hapax_op *op)
{
    unsigned long hash = hash_of(op);
    unsigned long none = 0;

    CHECK(is_body_of(op->record.outcome.body, key), "key %u has the outcome of another", key);
    if (!atomic_compare_exchange_strong(&storm->stored[key], &none, hash))
        CHECK(none == hash, "key %u has two outcomes", key);
}

static void run_counted(const struct storm_client *client, struct hapax_op *op)
{
    struct storm *storm = client->storm;

    atomic_store(&storm->in_op[client->slot], 1 + atomic_fetch_add(&storm->ops, 1));
    client->run(client, op);
    atomic_store(&storm->in_op[client->slot], 0);
}

/* Some time passes in the handler, as much as it takes to read; it renews once, or never. False:
 * its claim is lost. */
static bool handle(const struct storm_client *client, unsigned key, unsigned who)
{
    unsigned reads = who % client->reads_max;
    struct hapax_op op;

    for (unsigned i = 0; i < reads; i++) {
        op = op_of(client->suite, HAPAX_OP_READ, key, 0);
        run_counted(client, &op);
        CHECK(op.verdict == HAPAX_FOUND, "key %u: a claim is %s", key,
              hapax_verdict_name(op.verdict));
    }
    if (who / client->reads_max % 4 > 0)
        return true;
    op = op_of(client->suite, HAPAX_OP_RENEW, key, who);
    op.lease_ms = LEASE_MS;
    run_counted(client, &op);
    CHECK(op.verdict == HAPAX_OK || op.verdict == HAPAX_LOST, "RENEW: %s",
          hapax_verdict_name(op.verdict));
    return op.verdict == HAPAX_OK;
}

static void complete(const struct storm_client *client, unsigned key, unsigned who, bool held)
{
    struct hapax_op op = op_of(client->suite, HAPAX_OP_COMPLETE, key, who);
    char text[BODY_MAX];

    op.outcome.body = body_of(text, who, key);
    run_counted(client, &op);
    if (op.verdict == HAPAX_OK) {
        CHECK(held, "key %u: completed by a claim that was lost", key);
        CHECK(same_bytes(op.record.outcome.body, body_of(text, who, key)),
              "key %u: completed with another's bytes", key);
        agree(client->storm, key, &op);
        atomic_fetch_add(&client->storm->acknowledged, 1);
        return;
    }
    CHECK(op.verdict == HAPAX_LOST, "COMPLETE: %s", hapax_verdict_name(op.verdict));
}

/* Odd keys are under hold: their effect may happen once. The effect stands where a handler runs. */
static void storm_key(const struct storm_client *client, unsigned key, unsigned who)
{
    struct storm *storm = client->storm;
    struct hapax_op op = op_of(client->suite, HAPAX_OP_CLAIM, key, who);
    unsigned long stored = atomic_load(&storm->stored[key]);
    unsigned before;

    op.lease_ms = LEASE_MS;
    op.on_expired = key % 2 ? HAPAX_EXPIRED_HOLD : HAPAX_EXPIRED_RERUN;
    run_counted(client, &op);
    CHECK(!stored || op.verdict == HAPAX_COMPLETED ||
              (client->suite->hinted && op.verdict == HAPAX_IN_FLIGHT),
          "key %u was completed, and is %s", key, hapax_verdict_name(op.verdict));
    if (op.verdict == HAPAX_COMPLETED) {
        agree(storm, key, &op);
        atomic_fetch_add(&storm->replayed, 1);
    }
    if (op.verdict == HAPAX_UNKNOWN) {
        CHECK(key % 2, "key %u is unknown, though not held", key);
        atomic_fetch_add(&storm->unknown, 1);
    }
    if (op.verdict != HAPAX_CLAIMED)
        return;
    atomic_fetch_add(&storm->taken_over, op.record.attempt > 1);
    before = atomic_fetch_add(&storm->effects[key], 1);
    CHECK(before == 0 || key % 2 == 0, "key %u: its effect happened twice under hold", key);
    complete(client, key, who, handle(client, key, who));
}

void storm_run(struct storm_client *client)
{
    while (!atomic_load(&client->storm->over)) {
        unsigned first = atomic_load(&client->storm->first);
        unsigned key = first + (unsigned)(next_random(&client->random) % client->storm->window);

        storm_key(client, key, 1 + (unsigned)(next_random(&client->random) >> 33));
    }
}

void storm_look_back(const struct storm_client *client)
{
    struct storm *storm = client->storm;
    unsigned last = atomic_load(&storm->first) + storm->window;

    for (unsigned key = 0; key < last; key++) {
        int64_t deadline_ms = monotonic_ms() + IN_FLIGHT_MS;
        unsigned long stored = atomic_load(&storm->stored[key]);
        struct hapax_op op;

        do {
            op = op_of(client->suite, HAPAX_OP_CLAIM, key, UINT32_MAX);
            client->run(client, &op);
            CHECK(monotonic_ms() < deadline_ms, "key %u is in flight for ever", key);
        } while (op.verdict == HAPAX_IN_FLIGHT);
        if (stored)
            CHECK(op.verdict == HAPAX_COMPLETED, "key %u: its completion was lost: %s", key,
                  hapax_verdict_name(op.verdict));
        if (op.verdict == HAPAX_COMPLETED)
            agree(storm, key, &op);
        CHECK(op.verdict != HAPAX_CLAIMED || key % 2 == 0 || !atomic_load(&storm->effects[key]),
              "key %u: its effect happened, and it is to happen again", key);
        CHECK(op.verdict != HAPAX_UNKNOWN || key % 2, "key %u is unknown, though not held", key);
    }
}
