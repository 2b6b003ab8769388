/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixed work, to have its instructions counted (tools/cost). An operation is a CLAIM and a COMPLETE
 * with 300 bytes, in batches of 32. `yardstick` is no part of Hapax: plain C, by which a count is
 * scaled where another compiler made it.
 *
 *     cost_bench yardstick|memory|sealed|rocksdb|keeper|lane OPERATIONS
 */
#include "bench.h"
#include "lane/lane.h"
#include "store/keeper/keeper.h"

#include <hapax/store.h>
#include <poll.h>

#define BATCH 32u
#define HEX   "0123456789abcdef"

static struct hapax_op op_of(enum hapax_op_kind kind, uint64_t n)
{
    static const uint8_t body[300];
    char key[32];
    int len = snprintf(key, sizeof(key), "key-%llu", (unsigned long long)n);
    struct hapax_span none = {NULL, 0};
    struct hapax_op op;

    memset(&op, 0, sizeof(op));
    op.kind = kind;
    op.scope = hapax_str("default");
    if (hapax_id(&op.id, op.scope, (struct hapax_span){(uint8_t *)key, (size_t)len}, none, none) !=
        HAPAX_ERR_NONE)
        die("id", NULL);
    memcpy(op.token.bytes, op.id.bytes, sizeof(op.token.bytes));
    if (kind == HAPAX_OP_CLAIM) {
        op.what = hapax_str("POST /payments");
        memcpy(op.fingerprint.bytes, op.id.bytes, sizeof(op.fingerprint.bytes));
        op.lease_ms = 30000;
        op.retention_ms = 86400000;
        op.on_expired = HAPAX_EXPIRED_RERUN;
    } else {
        op.outcome = (struct hapax_outcome){.status = 200,
                                            .body_kept = true,
                                            .headers = hapax_str("Content-Type: text/plain\r\n"),
                                            .body = {body, sizeof(body)}};
    }
    return op;
}

static void expect(const struct hapax_op *op)
{
    if (op->verdict != (op->kind == HAPAX_OP_CLAIM ? HAPAX_CLAIMED : HAPAX_OK))
        die("verdict", hapax_verdict_name(op->verdict));
}

static struct hapax_store *store_at(const char *uri)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        die("open", text);
    return store;
}

static void run_on(struct hapax_store *store, uint64_t operations)
{
    struct hapax_op ops[BATCH];

    for (uint64_t n = 0; n < operations; n += BATCH)
        for (enum hapax_op_kind kind = HAPAX_OP_CLAIM; kind <= HAPAX_OP_COMPLETE; kind += 2) {
            for (uint64_t i = 0; i < BATCH; i++)
                ops[i] = op_of(kind, n + i);
            if (hapax_store_run(store, ops, BATCH) != HAPAX_ERR_NONE)
                die("run", hapax_store_text(store));
            for (uint64_t i = 0; i < BATCH; i++)
                expect(&ops[i]);
        }
    hapax_store_close(store);
}

static void run_store(const char *uri, uint64_t operations)
{
    run_on(store_at(uri), operations);
}

static void run_sealed(uint64_t operations)
{
    struct hapax_store *store = store_at("memory:");

    if (hapax_store_keys(store, hapax_str("k " HEX HEX HEX HEX)) != HAPAX_ERR_NONE)
        die("keys", hapax_store_text(store));
    run_on(store, operations);
}

static void run_rocksdb(const char *folder, uint64_t operations)
{
    char uri[96];

    hapax_rocksdb_use();
    snprintf(uri, sizeof(uri), "rocksdb:%s/db?sync=off", folder);
    run_store(uri, operations);
}

static void run_keeper(const char *folder, uint64_t operations)
{
    char path[96], uri[112], text[HAPAX_TEXT_MAX];
    struct hapax__keeper_options options = {.path = path};
    struct hapax__keeper_server *server;

    snprintf(path, sizeof(path), "%s/keeper.sock", folder);
    snprintf(uri, sizeof(uri), "unix:%s", path);
    if (hapax__keeper_serve(&server, store_at("memory:"), &options, text) != HAPAX_ERR_NONE)
        die("serve", text);
    run_store(uri, operations);
    hapax__keeper_stop(server);
}

static void reap(struct hapax__lane *lane, uint32_t n)
{
    struct pollfd fd = {.fd = hapax__lane_fd(lane), .events = POLLIN};
    struct hapax__job *job, *next;

    while (n > 0) {
        if (poll(&fd, 1, 60000) != 1)
            die("no answer", NULL);
        for (job = hapax__lane_reap(lane); job; job = next, n--) {
            next = job->next;
            expect(&job->op);
            free(job->memory);
        }
    }
}

static void run_lane(uint64_t operations)
{
    static struct hapax__job jobs[BATCH];
    struct hapax__lane *lane;

    if (hapax__lane_open(&lane, store_at("memory:"), BATCH) != HAPAX_ERR_NONE)
        die("lane", NULL);
    for (uint64_t n = 0; n < operations; n += BATCH)
        for (enum hapax_op_kind kind = HAPAX_OP_CLAIM; kind <= HAPAX_OP_COMPLETE; kind += 2) {
            for (uint64_t i = 0; i < BATCH; i++)
                jobs[i] = (struct hapax__job){.op = op_of(kind, n + i),
                                              .next = i + 1 < BATCH ? &jobs[i + 1] : NULL};
            if (hapax__lane_submit_all(lane, jobs))
                die("the lane is full", NULL);
            reap(lane, BATCH);
        }
    hapax__lane_close(lane);
}

static void run_yardstick(uint64_t operations)
{
    static uint32_t table[1024];
    volatile uint32_t sum = 0;

    for (uint64_t n = 0; n < operations; n++)
        for (uint32_t i = 0; i < 1024; i++) {
            uint32_t at = (table[i] ^ i * 2654435761u) >> 22;

            table[at] += i + (uint32_t)n;
            if (table[at] % 3 == 0)
                sum += table[i];
        }
    (void)sum;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/hapax-bench-XXXXXX";
    const char *part = argc == 3 ? argv[1] : "";
    uint64_t operations = argc == 3 ? strtoull(argv[2], NULL, 10) / BATCH * BATCH : 0;

    if (!mkdtemp(folder))
        die(folder, "cannot make it");
    if (strcmp(part, "yardstick") == 0)
        run_yardstick(operations);
    else if (strcmp(part, "memory") == 0)
        run_store("memory:", operations);
    else if (strcmp(part, "sealed") == 0)
        run_sealed(operations);
    else if (strcmp(part, "rocksdb") == 0)
        run_rocksdb(folder, operations);
    else if (strcmp(part, "keeper") == 0)
        run_keeper(folder, operations);
    else if (strcmp(part, "lane") == 0)
        run_lane(operations);
    else
        die("usage", "cost_bench yardstick|memory|sealed|rocksdb|keeper|lane OPERATIONS");
    remove_folder(folder);
    return 0;
}
