/* SPDX-License-Identifier: Apache-2.0
 *
 * history URI WHO LEASE_MS hold|rerun KEY: one client of a store, which writes what it asks and
 * what it is answered, for tests/store/test_histories.py, whose checkers judge. Ends at the end of
 * stdin; a line there has it read each key once more.
 *
 * The clients of one run agree on the keys by the time: each half second has one more, and the
 * newest eight are asked for, but none before KEY. A line is written before each call of the store
 * and after it, so that of a client that is killed the call under way is known as one without an
 * answer.
 */
#include <assert.h>
#include <hapax/store.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define KEY_MS    500
#define KEYS      8u
#define RETAIN_MS 86400000
#define BODY_MAX  64u

static struct hapax_store *store;
static const char *who;
static int64_t lease_ms;
static bool hold;
static unsigned number, first_key;

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static unsigned random_below(unsigned n)
{
    unsigned word;

    assert(getrandom(&word, sizeof(word), 0) == sizeof(word));
    return word % n;
}

static void pause_ms(unsigned ms)
{
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
}

static const char *name_of(enum hapax_op_kind kind)
{
    switch (kind) {
    case HAPAX_OP_CLAIM:
        return "claim";
    case HAPAX_OP_RENEW:
        return "renew";
    case HAPAX_OP_COMPLETE:
        return "complete";
    case HAPAX_OP_FAIL:
        return "fail";
    default:
        assert(kind == HAPAX_OP_READ);
        return "read";
    }
}

static void begin_line(void)
{
    printf("{\"who\":\"%s\",\"n\":%u,\"at\":%" PRId64 ",", who, number, now_us());
}

static void end_line(struct hapax_span body)
{
    printf("\"body\":\"%.*s\"}\n", (int)body.len, (const char *)body.ptr);
    fflush(stdout);
}

/* One call of the store, with a line before it and one after. */
static void ask(struct hapax_op *op, unsigned key)
{
    const struct hapax_record *record = &op->record;

    number++;
    begin_line();
    printf("\"op\":\"%s\",\"key\":%u,\"token\":\"%.16s\",", name_of(op->kind), key,
           (const char *)op->token.bytes);
    end_line(op->outcome.body);
    (void)hapax_store_run(store, op, 1);
    begin_line();
    printf("\"error\":\"%s\",\"verdict\":\"%s\",\"state\":\"%s\",\"attempt\":%u,",
           hapax_error_name(op->error), hapax_verdict_name(op->verdict),
           hapax_state_name(record->state), record->attempt);
    printf("\"fence\":%" PRIu64 ",\"stale\":%s,", record->fence, record->stale ? "true" : "false");
    end_line(record->outcome.body);
}

static struct hapax_op op_of(enum hapax_op_kind kind, unsigned key)
{
    struct hapax_op op = {.kind = kind,
                          .scope = hapax_str("history"),
                          .lease_ms = lease_ms,
                          .retention_ms = RETAIN_MS,
                          .on_expired = hold ? HAPAX_EXPIRED_HOLD : HAPAX_EXPIRED_RERUN};
    char name[16];

    snprintf(name, sizeof(name), "k%u", key);
    (void)hapax_id(&op.id, op.scope, hapax_str(name), hapax_str(NULL), hapax_str(NULL));
    return op;
}

/* Until there is a verdict, or, one time in four, not at all: a client gives up, too. */
static bool insist(struct hapax_op *op, unsigned key)
{
    do {
        ask(op, key);
        if (op->error == HAPAX_ERR_NONE)
            return true;
        pause_ms(20);
    } while (random_below(4) > 0);
    return false;
}

static void end_claim(const struct hapax_op *claim, unsigned key)
{
    enum hapax_op_kind kind = random_below(5) > 0 ? HAPAX_OP_COMPLETE : HAPAX_OP_FAIL;
    struct hapax_op op = op_of(kind, key);
    char body[BODY_MAX];

    snprintf(body, sizeof(body), "%s.%u", who, number);
    op.token = claim->token;
    op.attempt = claim->record.attempt;
    op.fence = claim->record.fence;
    op.ran = true;
    op.outcome = (struct hapax_outcome){200, true, hapax_str(NULL), hapax_str(body)};
    (void)insist(&op, key);
}

static void claim_one(unsigned key)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, key);

    snprintf((char *)op.token.bytes, sizeof(op.token.bytes), "%s.%u", who, number);
    if (!insist(&op, key) || op.verdict != HAPAX_CLAIMED)
        return;
    pause_ms(random_below(40));
    if (random_below(4) == 0) {
        struct hapax_op renewal = op_of(HAPAX_OP_RENEW, key);

        renewal.token = op.token;
        (void)insist(&renewal, key);
    }
    /* Some die here, as far as the store can know, and some are late. */
    if (random_below(8) == 0)
        return;
    if (random_below(8) == 0)
        pause_ms(random_below((unsigned)lease_ms * 2));
    end_claim(&op, key);
}

static void read_one(unsigned key)
{
    struct hapax_op op = op_of(HAPAX_OP_READ, key);

    (void)insist(&op, key);
}

static unsigned newest(void)
{
    return (unsigned)(now_us() / 1000 / KEY_MS);
}

/* Until nothing more can be read from stdin. */
static bool goes_on(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char line[16];

    while (poll(&in, 1, 0) > 0) {
        if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
            return false;
        for (unsigned key = first_key, end = newest(); store && key <= end; key++)
            read_one(key);
    }
    return true;
}

int main(int argc, char **argv)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (argc != 6)
        return 2;
    who = argv[2];
    lease_ms = strtol(argv[3], NULL, 10);
    hold = strcmp(argv[4], "hold") == 0;
    first_key = (unsigned)strtoul(argv[5], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    error = hapax_store_open(&store, argv[1], text);
    while (error == HAPAX_ERR_UNAVAILABLE && goes_on()) {
        pause_ms(50);
        error = hapax_store_open(&store, argv[1], text);
    }
    if (error != HAPAX_ERR_NONE) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    while (goes_on()) {
        unsigned key = newest() - random_below(KEYS);

        if (key < first_key)
            continue;
        if (random_below(6) == 0)
            read_one(key);
        else
            claim_one(key);
        pause_ms(random_below(60));
    }
    hapax_store_close(store);
    return 0;
}
