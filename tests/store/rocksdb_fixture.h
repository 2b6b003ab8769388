/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the embedded store share: a folder of their own, ops made from a number, and
 * the database's files behind the store's back. Failures abort the test that runs.
 */
#ifndef ROCKSDB_FIXTURE_H
#define ROCKSDB_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants those four first */
#include <cmocka.h>
#include <ftw.h>
#include <hapax/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "store/rocksdb/db.h"
#include "store/rocksdb/rocksdb.h"

#define BODY_SIZE 300
#define LEASE_MS  INT64_C(3600000)

struct fixture {
    char path[64];
    char uri[160];
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
};

static inline int64_t monotonic_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static inline uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline void fill(uint8_t *out, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(mix(seed + i / 8) >> i % 8 * 8);
}

static inline struct hapax_id id_of(uint64_t n)
{
    struct hapax_id id;

    fill(id.bytes, sizeof(id.bytes), n * 1000 + 1);
    return id;
}

/* The bytes that complete operation n: they tell one operation's from another's. */
static inline struct hapax_span body_of(uint8_t out[BODY_SIZE], uint64_t n)
{
    fill(out, BODY_SIZE, n * 1000 + 500);
    return (struct hapax_span){out, BODY_SIZE};
}

static inline struct hapax_op claim_of(uint64_t n, uint8_t who)
{
    struct hapax_op op = {.kind = HAPAX_OP_CLAIM,
                          .id = id_of(n),
                          .token = {{who}},
                          .scope = hapax_str("test"),
                          .lease_ms = LEASE_MS,
                          .retention_ms = 24 * LEASE_MS,
                          .on_expired = HAPAX_EXPIRED_RERUN};

    return op;
}

static inline struct hapax_op complete_of(uint64_t n, uint8_t who, struct hapax_span body)
{
    struct hapax_op op = {.kind = HAPAX_OP_COMPLETE, .id = id_of(n), .token = {{who}}};

    op.outcome.status = 200;
    op.outcome.body_kept = true;
    op.outcome.body = body;
    return op;
}

static inline struct hapax_op read_of(uint64_t n)
{
    return (struct hapax_op){.kind = HAPAX_OP_READ, .id = id_of(n)};
}

static inline enum hapax_verdict run_one(struct hapax_store *store, struct hapax_op *op)
{
    hapax_store_run(store, op, 1);
    return op->verdict;
}

static inline enum hapax_verdict claim(struct hapax_store *store, uint64_t n, uint8_t who)
{
    struct hapax_op op = claim_of(n, who);

    return run_one(store, &op);
}

static inline enum hapax_verdict complete(struct hapax_store *store, uint64_t n, uint8_t who)
{
    uint8_t body[BODY_SIZE];
    struct hapax_op op = complete_of(n, who, body_of(body, n));

    return run_one(store, &op);
}

/* Whether n is there, completed, with its own bytes. */
static inline bool is_completed(struct hapax_store *store, uint64_t n)
{
    uint8_t body[BODY_SIZE];
    struct hapax_op op = read_of(n);
    struct hapax_span want = body_of(body, n);

    return run_one(store, &op) == HAPAX_FOUND && op.record.state == HAPAX_STATE_COMPLETED &&
           op.record.outcome.body.len == want.len &&
           memcmp(op.record.outcome.body.ptr, want.ptr, want.len) == 0;
}

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void open_store(struct fixture *f, const char *options)
{
    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s%s", f->path, options);
    if (hapax_store_open(&f->store, f->uri, f->text) != HAPAX_ERR_NONE)
        fail_msg("%s", f->text);
    assert_ptr_equal(f->store->type, &hapax__rocksdb);
}

static inline void close_store(struct fixture *f)
{
    hapax_store_close(f->store);
    f->store = NULL;
}

static inline void reopen_store(struct fixture *f)
{
    close_store(f);
    open_store(f, "");
}

static inline int make_folder(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (!f)
        return -1;
    snprintf(f->path, sizeof(f->path), "/tmp/hapax-rocksdb-XXXXXX");
    if (!mkdtemp(f->path))
        return -1;
    *state = f;
    return 0;
}

static inline int make_store(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    open_store(*state, "");
    return 0;
}

static inline int drop_store(void **state)
{
    struct fixture *f = *state;

    hapax_store_close(f->store);
    remove_tree(f->path);
    free(f);
    return 0;
}

/* ---- behind the store's back; it must be closed -------------------------------------- */

static inline struct hapax__files *open_files(const struct fixture *f)
{
    struct hapax__files *files = malloc(sizeof(*files));
    char folder[128], text[HAPAX_TEXT_MAX];

    assert_non_null(files);
    snprintf(folder, sizeof(folder), "%s/db", f->path);
    hapax__files_init(files);
    if (hapax__files_open(files, folder, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return files;
}

static inline void close_files(struct hapax__files *files)
{
    hapax__files_close(files);
    hapax__files_release(files);
    free(files);
}

static inline void put_raw(struct hapax__files *files, enum hapax__family family, const void *key,
                           size_t key_len, const void *value, size_t len)
{
    rocksdb_writeoptions_t *options = rocksdb_writeoptions_create();
    char *failure = NULL;

    rocksdb_put_cf(files->db, options, files->family[family], key, key_len, value, len, &failure);
    assert_null(failure);
    rocksdb_writeoptions_destroy(options);
}

/* Yours to rocksdb_free(). NULL: there is none. */
static inline uint8_t *get_raw(struct hapax__files *files, enum hapax__family family,
                               const void *key, size_t key_len, size_t *len)
{
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    char *failure = NULL;
    char *value =
        rocksdb_get_cf(files->db, options, files->family[family], key, key_len, len, &failure);

    assert_null(failure);
    rocksdb_readoptions_destroy(options);
    return (uint8_t *)value;
}

#endif
