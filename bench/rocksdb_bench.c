/* SPDX-License-Identifier: Apache-2.0
 *
 * What the embedded store costs beside RocksDB itself. Batches of 64 operations are each claimed
 * and then completed with 300 bytes: by hapax_store_run() on one database, and by the same RocksDB
 * calls bare on another. Keys, reads, writes, sizes and syncs are the same. The two take turns, so
 * that both see the same machine. Exits 1 if the store does less than 0.7 of the bare rate.
 *
 *     rocksdb_bench [--seconds S] [--sync off]
 */
#include "base/bytes.h"
#include "bench.h"
#include "core/record.h"
#include "store/rocksdb/db.h"

#include <unistd.h>

#define BATCH     64u
#define BODY_SIZE 300u
#define TURN_US   INT64_C(250000)
#define RATIO_MIN 0.7

struct bare {
    struct hapax__files files;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes;
    rocksdb_writebatch_t *batch;
    uint8_t claimed[512]; /* of the size of a claimed record */
    size_t claimed_len;
    uint8_t completed[1024];
    size_t completed_len;
};

struct rate {
    uint64_t ops;
    int64_t us;
};

static struct hapax_id ids[BATCH];
static uint8_t body[BODY_SIZE];
static atomic_ullong counter;

/* ---- the store --------------------------------------------------------------------- */

static void store_cycle(struct hapax_store *store)
{
    static struct hapax_op ops[BATCH];

    for (size_t i = 0; i < BATCH; i++)
        ops[i] = (struct hapax_op){.kind = HAPAX_OP_CLAIM,
                                   .id = ids[i],
                                   .token = {{1}},
                                   .scope = hapax_str("bench"),
                                   .lease_ms = 30000,
                                   .retention_ms = 86400000,
                                   .on_expired = HAPAX_EXPIRED_RERUN};
    if (hapax_store_run(store, ops, BATCH) != HAPAX_ERR_NONE)
        die("claim", hapax_store_text(store));
    for (size_t i = 0; i < BATCH; i++) {
        ops[i] = (struct hapax_op){.kind = HAPAX_OP_COMPLETE, .id = ids[i], .token = {{1}}};
        ops[i].outcome.status = 200;
        ops[i].outcome.body_kept = true;
        ops[i].outcome.body = (struct hapax_span){body, BODY_SIZE};
    }
    if (hapax_store_run(store, ops, BATCH) != HAPAX_ERR_NONE)
        die("complete", hapax_store_text(store));
}

/* ---- bare -------------------------------------------------------------------------- */

static void bare_read(struct bare *bare)
{
    static const char *keys[BATCH];
    static size_t sizes[BATCH];
    static rocksdb_pinnableslice_t *values[BATCH];
    static char *failures[BATCH];

    for (size_t i = 0; i < BATCH; i++) {
        keys[i] = (const char *)ids[i].bytes;
        sizes[i] = sizeof(ids[i]);
    }
    rocksdb_batched_multi_get_cf(bare->files.db, bare->reads, bare->files.family[HAPAX__RECORDS],
                                 BATCH, keys, sizes, values, failures, false);
    for (size_t i = 0; i < BATCH; i++) {
        if (failures[i])
            die("read", failures[i]);
        if (values[i])
            rocksdb_pinnableslice_destroy(values[i]);
    }
}

static void bare_write(struct bare *bare, const uint8_t *record, size_t len, bool open)
{
    rocksdb_column_family_handle_t **family = bare->files.family;
    static const char mark[HAPAX__CLOCK_SIZE];
    char *failure = NULL;

    rocksdb_writebatch_clear(bare->batch);
    for (size_t i = 0; i < BATCH; i++) {
        const char *key = (const char *)ids[i].bytes;

        rocksdb_writebatch_put_cf(bare->batch, family[HAPAX__RECORDS], key, sizeof(ids[i]),
                                  (const char *)record, len);
    }
    if (open) /* the note of which records began */
        rocksdb_writebatch_put_cf(bare->batch, family[HAPAX__META], "opened", 6, (const char *)ids,
                                  sizeof(ids));
    rocksdb_writebatch_put_cf(bare->batch, family[HAPAX__META], "clock", 5, mark, sizeof(mark));
    rocksdb_write(bare->files.db, bare->writes, bare->batch, &failure);
    if (failure)
        die("write", failure);
}

static void bare_cycle(struct bare *bare)
{
    bare_read(bare);
    bare_write(bare, bare->claimed, bare->claimed_len, true);
    bare_read(bare);
    bare_write(bare, bare->completed, bare->completed_len, false);
}

/* Bytes of the sizes, and of the compressibility, of real records. */
static void bare_records(struct bare *bare)
{
    struct hapax_record record = {.state = HAPAX_STATE_STARTED, .scope = hapax_str("bench")};

    bare->claimed_len = hapax__record_size(&record);
    hapax__record_encode(bare->claimed, &record);
    record.state = HAPAX_STATE_COMPLETED;
    record.outcome.body = (struct hapax_span){body, BODY_SIZE};
    bare->completed_len = hapax__record_size(&record);
    hapax__record_encode(bare->completed, &record);
}

static void bare_open(struct bare *bare, const char *folder, bool sync)
{
    char text[HAPAX_TEXT_MAX];

    memset(bare, 0, sizeof(*bare));
    hapax__files_init(&bare->files);
    if (hapax__files_open(&bare->files, folder, text) != HAPAX_ERR_NONE)
        die("open", text);
    bare->reads = rocksdb_readoptions_create();
    bare->writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(bare->writes, sync);
    bare->batch = rocksdb_writebatch_create();
    bare_records(bare);
}

static void bare_close(struct bare *bare)
{
    rocksdb_writebatch_destroy(bare->batch);
    rocksdb_writeoptions_destroy(bare->writes);
    rocksdb_readoptions_destroy(bare->reads);
    hapax__files_close(&bare->files);
    hapax__files_release(&bare->files);
}

/* ---- the comparison ---------------------------------------------------------------- */

static void turn(struct rate *rate, struct hapax_store *store, struct bare *bare)
{
    int64_t begin_us = now_us(), end_us;

    do {
        draw(&counter, ids, sizeof(ids));
        if (store)
            store_cycle(store);
        else
            bare_cycle(bare);
        rate->ops += 2 * BATCH;
        end_us = now_us();
    } while (end_us - begin_us < TURN_US);
    rate->us += end_us - begin_us;
}

static double per_second(const struct rate *rate)
{
    return (double)rate->ops * 1e6 / (double)rate->us;
}

static double compare(struct hapax_store *store, struct bare *bare, double seconds)
{
    struct rate ours = {0}, theirs = {0}, warm = {0};
    int64_t end_us = now_us() + (int64_t)(seconds * 1e6);

    turn(&warm, store, NULL);
    turn(&warm, NULL, bare);
    do {
        turn(&ours, store, NULL);
        turn(&theirs, NULL, bare);
    } while (now_us() < end_us);
    printf("rocksdb store at batch %u  %9.0f ops/s\n", BATCH, per_second(&ours));
    printf("bare rocksdb              %9.0f ops/s\n", per_second(&theirs));
    return per_second(&ours) / per_second(&theirs);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/hapax-bench-XXXXXX", path[64], uri[96], text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    struct bare bare;
    double seconds = 6, ratio;
    bool sync = true;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--sync") == 0)
            sync = strcmp(argv[i + 1], "off") != 0;
        else
            die(argv[i], "not known (--seconds S, --sync off)");
    }
    counter = (uint64_t)now_us();
    draw(&counter, body, sizeof(body));
    if (!mkdtemp(folder))
        die(folder, "cannot make it");
    hapax_rocksdb_use();
    snprintf(uri, sizeof(uri), "rocksdb:%s/store%s", folder, sync ? "" : "?sync=off");
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        die("open", text);
    snprintf(path, sizeof(path), "%s/bare", folder);
    bare_open(&bare, path, sync);
    ratio = compare(store, &bare, seconds);
    printf("ratio %.2f (at least %.2f)\n", ratio, RATIO_MIN);
    bare_close(&bare);
    hapax_store_close(store);
    remove_folder(folder);
    return ratio < RATIO_MIN;
}
