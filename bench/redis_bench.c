/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Redis store costs beside Redis itself. Batches of 64 operations are each claimed and
 * then completed with 300 bytes, under new keys. Three rows take turns on one node:
 *
 *     store   by hapax_store_run()
 *     bare    the same EVALSHA with the same arguments, prepared before, by hiredis
 *     plain   SET NX and SET of the body, pipelined by hiredis, with no check of anything
 *
 * Beside each stands the CPU time that the server spent. Exits 1 if the store does less than 0.85
 * of bare.
 *
 *     redis_bench URI [--seconds S]          (with.py redis build/bench/redis_bench '{uri}')
 */
#include "bench.h"
#include "store/redis/redis.h"

#include <hiredis/hiredis.h>

#define BATCH        64u
#define BODY_SIZE    300u
#define TURN_US      INT64_C(250000)
#define RATIO_MIN    0.85
#define LEASE_MS     30000
#define RETENTION_MS 600000

/* One half of a bare cycle, as it is sent. */
struct script_call {
    struct hapax__redis_args ops[BATCH];
    struct hapax__redis_numbers numbers;
    const char *words[5 + 5 * BATCH];
    size_t sizes[5 + 5 * BATCH];
    int count;
};

struct row {
    const char *name;
    void (*cycle)(void);
    uint64_t cycles;
    int64_t us;
    double server_s; /* CPU time of the server */
};

static struct hapax_store *store;
static struct hapax__redis *redis;
static redisContext *context;
static struct script_call claim_call, complete_call;
static struct hapax_id ids[BATCH];
static uint8_t body[BODY_SIZE];
static atomic_ullong counter;

static struct hapax_op claim_of(size_t i)
{
    return (struct hapax_op){.kind = HAPAX_OP_CLAIM,
                             .id = ids[i],
                             .token = {{1}},
                             .scope = hapax_str("bench"),
                             .lease_ms = LEASE_MS,
                             .retention_ms = RETENTION_MS,
                             .on_expired = HAPAX_EXPIRED_RERUN};
}

static struct hapax_op complete_of(size_t i)
{
    struct hapax_op op = {.kind = HAPAX_OP_COMPLETE, .id = ids[i], .token = {{1}}};

    op.outcome.status = 200;
    op.outcome.body_kept = true;
    op.outcome.body = (struct hapax_span){body, BODY_SIZE};
    return op;
}

/* ---- the rows ---------------------------------------------------------------------- */

static void store_cycle(void)
{
    static struct hapax_op ops[BATCH];

    for (size_t i = 0; i < BATCH; i++)
        ops[i] = claim_of(i);
    if (hapax_store_run(store, ops, BATCH) != HAPAX_ERR_NONE)
        die("claim", hapax_store_text(store));
    for (size_t i = 0; i < BATCH; i++)
        ops[i] = complete_of(i);
    if (hapax_store_run(store, ops, BATCH) != HAPAX_ERR_NONE)
        die("complete", hapax_store_text(store));
}

static void take(int type, size_t elements)
{
    redisReply *reply;

    if (redisGetReply(context, (void **)&reply) != REDIS_OK)
        die("reply", context->errstr);
    if (reply->type != type || (elements > 0 && reply->elements != elements))
        die("reply", reply->type == REDIS_REPLY_ERROR ? reply->str : "not what was expected");
    freeReplyObject(reply);
}

static void run_script(struct script_call *call)
{
    for (size_t i = 0; i < BATCH; i++)
        (void)hapax__redis_key(call->ops[i].key, redis->uri.prefix, &ids[i]);
    redisAppendCommandArgv(context, call->count, call->words, call->sizes);
    take(REDIS_REPLY_ARRAY, 2 + 2 * BATCH);
}

static void bare_cycle(void)
{
    run_script(&claim_call);
    run_script(&complete_call);
}

static void plain_cycle(void)
{
    static const char lease[] = "30000", retention[] = "600000";
    uint8_t keys[BATCH][HAPAX__REDIS_KEY_MAX];
    size_t len = 0;

    for (size_t i = 0; i < BATCH; i++) {
        len = hapax__redis_key(keys[i], redis->uri.prefix, &ids[i]);
        redisAppendCommand(context, "SET %b 1 NX PX %s", keys[i], len, lease);
    }
    for (size_t i = 0; i < BATCH; i++)
        take(REDIS_REPLY_STATUS, 0);
    for (size_t i = 0; i < BATCH; i++)
        redisAppendCommand(context, "SET %b %b PX %s", keys[i], len, body, (size_t)BODY_SIZE,
                           retention);
    for (size_t i = 0; i < BATCH; i++)
        take(REDIS_REPLY_STATUS, 0);
}

/* ---- preparing --------------------------------------------------------------------- */

static void prepare(struct script_call *call, struct hapax_op (*op_of)(size_t i))
{
    const struct hapax__redis_args *ops[BATCH];
    static struct hapax_span spans[3 + 5 * BATCH];
    size_t count;

    for (size_t i = 0; i < BATCH; i++) {
        struct hapax_op op = op_of(i);

        hapax__redis_pack(&call->ops[i], &op, redis->uri.prefix);
        ops[i] = &call->ops[i];
    }
    count = hapax__redis_argc(ops, BATCH);
    if (count + 2 > sizeof(call->words) / sizeof(call->words[0]))
        die("prepare", "too many arguments");
    hapax__redis_fill(spans, &call->numbers, ops, BATCH, HAPAX__REDIS_REPLY_MAX, false, false);
    call->words[0] = "EVALSHA";
    call->words[1] = redis->machine.sha;
    for (size_t i = 0; i < count; i++) {
        call->words[2 + i] = spans[i].ptr ? (const char *)spans[i].ptr : "";
        call->sizes[2 + i] = spans[i].len;
    }
    call->sizes[0] = strlen(call->words[0]);
    call->sizes[1] = strlen(call->words[1]);
    call->count = (int)(count + 2);
}

static void connect_bare(void)
{
    context = redisConnect(redis->uri.hosts[0].host, redis->uri.hosts[0].port);
    if (!context || context->err)
        die("connect", context ? context->errstr : "out of memory");
}

static double number_of(const char *text, const char *field)
{
    const char *at = strstr(text, field);

    return at ? strtod(at + strlen(field), NULL) : 0;
}

static double server_s(void)
{
    redisReply *reply = redisCommand(context, "INFO cpu");
    double seconds;

    if (!reply || reply->type != REDIS_REPLY_STRING)
        die("INFO cpu", "no answer");
    seconds = number_of(reply->str, "used_cpu_sys:") + number_of(reply->str, "used_cpu_user:");
    freeReplyObject(reply);
    return seconds;
}

/* ---- the comparison ---------------------------------------------------------------- */

static void turn(struct row *row)
{
    double before_s = server_s();
    int64_t begin_us = now_us(), end_us;

    do {
        draw(&counter, ids, sizeof(ids));
        row->cycle();
        row->cycles += BATCH;
        end_us = now_us();
    } while (end_us - begin_us < TURN_US);
    row->us += end_us - begin_us;
    row->server_s += server_s() - before_s;
}

static double per_second(const struct row *row)
{
    return (double)row->cycles * 1e6 / (double)row->us;
}

int main(int argc, char **argv)
{
    struct row rows[] = {{"store", store_cycle, 0, 0, 0},
                         {"bare", bare_cycle, 0, 0, 0},
                         {"plain", plain_cycle, 0, 0, 0}};
    double seconds = argc == 4 && strcmp(argv[2], "--seconds") == 0 ? strtod(argv[3], NULL) : 9;
    size_t count = sizeof(rows) / sizeof(rows[0]);
    char text[HAPAX_TEXT_MAX];
    int64_t end_us;
    double ratio;

    if (argc < 2)
        die("usage", "redis_bench URI [--seconds S]");
    counter = (uint64_t)now_us();
    draw(&counter, body, sizeof(body));
    if (hapax_store_open(&store, argv[1], text) != HAPAX_ERR_NONE)
        die("open", text);
    redis = (struct hapax__redis *)store;
    draw(&counter, ids, sizeof(ids));
    store_cycle(); /* which also loads the script */
    prepare(&claim_call, claim_of);
    prepare(&complete_call, complete_of);
    connect_bare();
    end_us = now_us() + (int64_t)(seconds * 1e6);
    do {
        for (size_t i = 0; i < count; i++)
            turn(&rows[i]);
    } while (now_us() < end_us);
    for (size_t i = 0; i < count; i++)
        printf("%-5s at batch %u  %8.0f cycles/s   server %5.2f us/cycle\n", rows[i].name, BATCH,
               per_second(&rows[i]), rows[i].server_s * 1e6 / (double)rows[i].cycles);
    ratio = per_second(&rows[0]) / per_second(&rows[1]);
    printf("store/bare %.2f (at least %.2f), store/plain %.2f\n", ratio, RATIO_MIN,
           per_second(&rows[0]) / per_second(&rows[2]));
    redisFree(context);
    hapax_store_close(store);
    return ratio < RATIO_MIN;
}
