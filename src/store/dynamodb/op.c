/* SPDX-License-Identifier: Apache-2.0
 *
 * One op on DynamoDB, from its first call to its answer. The machine judges here, on the item that
 * is in the table, or that this handle takes to be there. The verdict becomes the answer once a
 * write has landed whose condition says that nothing has changed since:
 *
 *   CLAIM, IMPORT      puts what an absent record becomes, if there is no item
 *   COMPLETE, RENEW …  put on top of what this handle wrote last, if it wrote the item
 *   otherwise          gets the item, judges, and puts where the record changes
 *
 * The first two take one round trip where their condition holds, or where the machine keeps the
 * item that came back; the third takes two. A condition that fails brings the item that is there,
 * which is judged anew: so each round of two contenders moves one of them on. A body that does not
 * fit the item is put in chunks before the record, under a set of its own that the record names:
 * nobody reads a set before it is whole.
 *
 * The invariant: a verdict is published only when it was judged on what a consistent read or a
 * failed condition showed, or when its write's condition held. An error is UNAVAILABLE only while
 * no write of this op may have been applied. A guess that would need no write is no answer: the
 * item is read first.
 */
#include "dynamodb.h"

#include "base/clock.h"
#include "base/time.h"
#include "core/machine.h"
#include "core/record.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define WINDOW   4u /* chunks under way at once */
#define SWEEP_US INT64_C(1000000) /* for removing chunks that no record names */
#define SWEEPS   2u

enum phase {
    PHASE_READ, /* the item is asked for */
    PHASE_WRITE, /* the record is put, or removed */
    PHASE_FETCH, /* the chunks of its body are asked for */
    PHASE_SAVE, /* chunks are put */
    PHASE_SWEEP, /* chunks are removed; op is answered */
    PHASE_OVER
};

/* A chunk under way. */
struct part {
    struct hapax__aws_call call;
    struct hapax__json_out out;
    size_t i;
    bool busy;
};

struct hapax__ddb_op {
    struct hapax__ddb *ddb;
    struct hapax_op *op;
    int64_t deadline_us;
    enum phase phase;

    /* The item that is there. */
    bool exists;
    /* Nothing has shown that it is so. */
    bool guess;
    /* The record had expired when it was read, and its body was not fetched. It stays absent, even
     * if the clock is set back. */
    bool gone;
    struct hapax__ddb_item item;
    struct hapax_record record; /* of item; borrows from arena */
    struct hapax_arena arena;

    /* The judgement. */
    struct hapax_op judged;
    enum hapax__write write;
    struct hapax_record next;
    struct hapax__ddb_item put; /* what is written; its r is `encoded` */
    uint8_t *encoded;
    bool maybe; /* an earlier write of this op may have been applied */

    /* Chunks. */
    struct hapax__ddb_chunks saved; /* put by this op */
    struct hapax_span saved_body;
    int64_t saved_ttl_s;
    /* A chunk was missing when the item was of version missed_v. */
    bool missed;
    uint8_t missed_v[HAPAX__DDB_V_LEN];
    struct hapax__ddb_chunks sweeps[SWEEPS];
    size_t sweep_count;

    /* Calls. */
    struct hapax__aws_call call;
    struct hapax__json_out out;
    struct part *parts; /* WINDOW of them; NULL until they are needed */
    const struct hapax__ddb_chunks *moving; /* the chunks of FETCH, SAVE and SWEEP */
    uint8_t *body; /* where FETCH puts them */
    size_t part_next, part_busy;
    enum hapax_error part_error; /* of the first that failed */
    bool part_missing;
};

static void judge(struct hapax__ddb_op *work);
static void read_item(struct hapax__ddb_op *work);
static void save_over(struct hapax__ddb_op *work);
static void fetch_over(struct hapax__ddb_op *work);

/* ---- calls ----------------------------------------------------------------------------- */

static void send(struct hapax__ddb_op *work, struct hapax__aws_call *call,
                 const struct hapax__json_out *out, const char *operation, int64_t deadline_us)
{
    hapax__aws_call_release(call);
    *call = (struct hapax__aws_call){
        .operation = operation,
        .body = {(const uint8_t *)out->bytes, out->len},
        .deadline_us = deadline_us,
        .tag = work,
    };
    hapax__aws_submit(work->ddb->aws, call);
}

/* ---- the end --------------------------------------------------------------------------- */

static bool same_set(const struct hapax__ddb_chunks *a, const struct hapax__ddb_chunks *b)
{
    return a->count > 0 && b->count > 0 && memcmp(a->set, b->set, sizeof(a->set)) == 0;
}

static void send_parts(struct hapax__ddb_op *work);

/* Removes the next set that no record names. The table's TTL removes what there is no time for. */
static void sweep(struct hapax__ddb_op *work)
{
    int64_t until_us = hapax__monotonic_us() + SWEEP_US;

    if (work->phase != PHASE_SWEEP && until_us < work->deadline_us)
        work->deadline_us = until_us;
    work->phase = PHASE_OVER;
    if (work->sweep_count == 0)
        return;
    work->phase = PHASE_SWEEP;
    work->moving = &work->sweeps[--work->sweep_count];
    work->part_next = 0;
    work->part_error = HAPAX_ERR_NONE;
    send_parts(work);
}

static void sweep_later(struct hapax__ddb_op *work, const struct hapax__ddb_chunks *chunks)
{
    if (chunks->count > 0 && work->sweep_count < SWEEPS)
        work->sweeps[work->sweep_count++] = *chunks;
}

/* Sweeps what this op put, unless the record names it. */
static void sweep_saved(struct hapax__ddb_op *work, const struct hapax__ddb_chunks *named)
{
    if (!same_set(&work->saved, named))
        sweep_later(work, &work->saved);
    work->saved.count = 0;
}

/* Takes the skew margin off the lease that a claim's owner is shown: the owner renews and gives up
 * by that. */
static void hide_margin(const struct hapax__ddb_op *work, struct hapax_op *op)
{
    bool holds =
        op->verdict == HAPAX_CLAIMED || (op->kind == HAPAX_OP_RENEW && op->verdict == HAPAX_OK);

    if (holds && op->record.lease_until_us > 0)
        op->record.lease_until_us -= work->ddb->uri.skew_ms * US_PER_MS;
}

static void publish(struct hapax__ddb_op *work)
{
    struct hapax_op *op = work->op;

    op->verdict = work->judged.verdict;
    op->error = HAPAX_ERR_NONE;
    op->differs = work->judged.differs;
    op->record = work->judged.record;
    op->now_us = work->judged.now_us;
    hide_margin(work, op);
    work->ddb->kept += op->record.outcome.headers.len + op->record.outcome.body.len;
    (void)hapax__store_keep(&work->ddb->base, op);
    sweep(work);
}

/* Ends the op with an error. An error of a repeat says nothing about the try before. */
static void fail(struct hapax__ddb_op *work, enum hapax_error error)
{
    assert(error != HAPAX_ERR_NONE);
    if (work->maybe && (error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_REFUSED ||
                        error == HAPAX_ERR_NOMEM || error == HAPAX_ERR_UNSUPPORTED))
        error = HAPAX_ERR_INDETERMINATE;
    work->op->verdict = HAPAX_NO_VERDICT;
    work->op->error = error;
    if (!work->maybe && error != HAPAX_ERR_INDETERMINATE)
        sweep_saved(work, &work->item.chunks);
    sweep(work);
}

static void fail_memory(struct hapax__ddb_op *work)
{
    fail(work, hapax_store_fail(&work->ddb->base, HAPAX_ERR_NOMEM, "out of memory for a record"));
}

/* ---- chunks under way ------------------------------------------------------------------ */

static const char *put_part(struct hapax__ddb_op *work, struct part *part)
{
    const char *table = work->ddb->uri.table;
    const struct hapax_id *id = &work->op->id;

    switch (work->phase) {
    case PHASE_FETCH:
        hapax__ddb_ask_get_chunk(&part->out, table, id, work->moving, part->i);
        return "GetItem";
    case PHASE_SAVE:
        hapax__ddb_ask_put_chunk(&part->out, table, id, work->moving, part->i, work->saved_body,
                                 work->saved_ttl_s);
        return "PutItem";
    default:
        assert(work->phase == PHASE_SWEEP);
        hapax__ddb_ask_delete_chunk(&part->out, table, id, work->moving, part->i);
        return "DeleteItem";
    }
}

static void parts_over(struct hapax__ddb_op *work)
{
    switch (work->phase) {
    case PHASE_FETCH:
        fetch_over(work);
        return;
    case PHASE_SAVE:
        save_over(work);
        return;
    default:
        assert(work->phase == PHASE_SWEEP);
        sweep(work);
    }
}

/* Sends as many chunks as fit the window. When the last one is back, the phase is over. */
static void send_parts(struct hapax__ddb_op *work)
{
    if (!work->parts)
        work->parts = calloc(WINDOW, sizeof(*work->parts));
    if (!work->parts)
        work->part_error = HAPAX_ERR_NOMEM;
    for (size_t p = 0;
         p < WINDOW && work->part_error == HAPAX_ERR_NONE && work->part_next < work->moving->count;
         p++) {
        struct part *part = &work->parts[p];
        const char *operation;

        if (part->busy)
            continue;
        part->i = work->part_next++;
        operation = put_part(work, part);
        if (part->out.failed) {
            work->part_error = HAPAX_ERR_NOMEM;
            break;
        }
        part->busy = true;
        work->part_busy++;
        send(work, &part->call, &part->out, operation, work->deadline_us);
    }
    if (work->part_busy == 0)
        parts_over(work);
}

/* Copies a chunk into the body. */
static enum hapax_error take_chunk(struct hapax__ddb_op *work, const struct part *part)
{
    size_t len = hapax__ddb_chunk_len(work->moving, part->i);
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_arena scratch = {NULL};
    enum hapax__ddb_seen seen;
    struct hapax_span bytes;

    seen = hapax__ddb_take_chunk(&bytes, &scratch, part->call.reply);
    if (seen == HAPAX__DDB_FOUND && bytes.len == len) {
        memcpy(work->body + part->i * HAPAX__DDB_CHUNK, bytes.ptr, len);
    } else if (seen == HAPAX__DDB_NOMEM) {
        error = HAPAX_ERR_NOMEM;
    } else if (seen == HAPAX__DDB_NONSENSE) {
        error = hapax__ddb_nonsense(work->ddb);
    } else {
        work->part_missing = true;
        error = HAPAX_ERR_CORRUPT;
    }
    hapax__arena_release(&scratch);
    return error;
}

static void take_part(struct hapax__ddb_op *work, struct part *part)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    part->busy = false;
    work->part_busy--;
    if (work->phase == PHASE_FETCH && part->call.result == HAPAX__AWS_OK)
        error = take_chunk(work, part);
    else if (work->phase != PHASE_SWEEP && part->call.result != HAPAX__AWS_OK)
        error = hapax__ddb_error(work->ddb, &part->call);
    else if (work->phase == PHASE_SAVE && !hapax__ddb_is_reply(part->call.reply))
        error = hapax__ddb_nonsense(work->ddb);
    hapax__aws_call_release(&part->call);
    if (work->part_error == HAPAX_ERR_NONE)
        work->part_error = error;
    send_parts(work);
}

/* ---- reading --------------------------------------------------------------------------- */

static void read_item(struct hapax__ddb_op *work)
{
    work->phase = PHASE_READ;
    hapax__ddb_ask_get(&work->out, work->ddb->uri.table, &work->op->id);
    if (work->out.failed)
        fail_memory(work);
    else
        send(work, &work->call, &work->out, "GetItem", work->deadline_us);
}

static void put_record(struct hapax__ddb_op *work);

/* Meets an item that cannot be read. An operator may forget it: no other op can do anything with
 * it. why NULL: the error says enough. */
static void damaged(struct hapax__ddb_op *work, enum hapax_error error, const char *why)
{
    struct hapax_op *op = work->op;

    if (error != HAPAX_ERR_CORRUPT || op->kind != HAPAX_OP_RESOLVE || !op->force ||
        op->resolve != HAPAX_RESOLVE_FORGET) {
        fail(work, hapax__ddb_unreadable(work->ddb, &op->id, error, why));
        return;
    }
    work->judged = *op;
    work->judged.verdict = HAPAX_OK;
    work->judged.differs = HAPAX_DIFFERS_NOT;
    memset(&work->judged.record, 0, sizeof(work->judged.record));
    work->judged.record.id = op->id;
    work->judged.now_us = hapax__wall_us();
    work->write = HAPAX__DELETE;
    work->guess = false;
    put_record(work);
}

/* A tombstone's body is of no use, and may be gone already. */
static void take_tombstone(struct hapax__ddb_op *work)
{
    work->gone = hapax__expired(&work->record, hapax__wall_us());
    hapax__bury(&work->record);
    judge(work);
}

static void fetch_over(struct hapax__ddb_op *work)
{
    struct hapax_span body = {work->body, work->item.chunks.len};

    if (work->part_missing && hapax__expired(&work->record, hapax__wall_us())) {
        work->gone = true;
        judge(work); /* the table's TTL removes a record and its chunks one by one */
    } else if (work->part_missing && hapax__tombstone(&work->record, hapax__wall_us())) {
        take_tombstone(work);
    } else if (work->part_missing &&
               (!work->missed || memcmp(work->missed_v, work->item.v, sizeof(work->item.v)) != 0)) {
        work->missed = true; /* the item may have been replaced, with its chunks */
        memcpy(work->missed_v, work->item.v, sizeof(work->item.v));
        read_item(work);
    } else if (work->part_missing) {
        damaged(work, HAPAX_ERR_CORRUPT, "a part of its body is missing");
    } else if (work->part_error == HAPAX_ERR_NOMEM) {
        fail_memory(work);
    } else if (work->part_error != HAPAX_ERR_NONE) {
        fail(work, work->part_error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE
                                                               : work->part_error);
    } else if (!hapax__ddb_chunks_hold(&work->item.chunks, &work->op->id, body)) {
        damaged(work, HAPAX_ERR_CORRUPT, "its body is damaged");
    } else {
        work->record.outcome.body = body;
        judge(work);
    }
}

static void fetch(struct hapax__ddb_op *work)
{
    work->phase = PHASE_FETCH;
    work->moving = &work->item.chunks;
    work->part_next = 0;
    work->part_error = HAPAX_ERR_NONE;
    work->part_missing = false;
    work->body = hapax__arena_alloc(&work->arena, work->item.chunks.len);
    if (!work->body)
        fail_memory(work);
    else
        send_parts(work);
}

/* Takes the item that a read or a failed condition showed. */
static void take_seen(struct hapax__ddb_op *work, enum hapax__ddb_seen seen)
{
    struct hapax_record *record = &work->record;
    enum hapax_error error;

    work->guess = work->gone = false;
    work->exists = seen == HAPAX__DDB_FOUND || seen == HAPAX__DDB_DAMAGED;
    if (seen == HAPAX__DDB_NONE) {
        judge(work);
        return;
    }
    if (seen == HAPAX__DDB_NOMEM) {
        fail_memory(work);
        return;
    }
    if (seen == HAPAX__DDB_NONSENSE) {
        fail(work, hapax__ddb_nonsense(work->ddb));
        return;
    }
    error = seen == HAPAX__DDB_DAMAGED ? HAPAX_ERR_CORRUPT
                                       : hapax__record_decode(record, &work->op->id, work->item.r);
    if (error == HAPAX_ERR_NONE && work->item.chunks.count > 0 && record->outcome.body.len > 0)
        error = HAPAX_ERR_CORRUPT;
    if (error != HAPAX_ERR_NONE)
        damaged(work, error, NULL);
    else if (hapax__tombstone(record, hapax__wall_us()))
        take_tombstone(work);
    else if (work->item.chunks.count > 0 &&
             !(work->gone = hapax__expired(record, hapax__wall_us())))
        fetch(work);
    else
        judge(work);
}

static enum hapax__ddb_seen read_reply(struct hapax__ddb_op *work)
{
    enum hapax__ddb_seen seen;

    hapax__arena_reset(&work->arena);
    seen = hapax__ddb_take_item(&work->item, &work->arena, work->call.reply);
    hapax__aws_call_release(&work->call); /* the item was decoded into the arena */
    return seen;
}

static void take_read(struct hapax__ddb_op *work)
{
    enum hapax_error error;

    if (work->call.result == HAPAX__AWS_OK) {
        take_seen(work, read_reply(work));
        return;
    }
    error = hapax__ddb_error(work->ddb, &work->call);
    fail(work, error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE : error);
}

/* ---- writing --------------------------------------------------------------------------- */

static bool new_random(struct hapax__ddb_op *work, uint8_t *out, size_t len)
{
    if (getrandom(out, len, 0) == (ssize_t)len)
        return true;
    fail(work, hapax_store_fail(&work->ddb->base, HAPAX_ERR_UNAVAILABLE,
                                "dynamodb: no random bytes: the version of a write needs them"));
    return false;
}

/* Encodes the record to write, without a body that is in chunks. */
static bool encode(struct hapax__ddb_op *work)
{
    struct hapax_record record = work->next;
    uint8_t *bytes;
    size_t size;

    if (work->put.chunks.count > 0)
        record.outcome.body = (struct hapax_span){NULL, 0};
    size = hapax__record_size(&record);
    bytes = realloc(work->encoded, size);
    if (!bytes) {
        fail_memory(work);
        return false;
    }
    work->encoded = bytes;
    hapax__record_encode(bytes, &record);
    work->put.r = (struct hapax_span){bytes, size};
    work->put.has_v = true;
    return new_random(work, work->put.v, sizeof(work->put.v));
}

/* Sends the conditional write; take_write() takes its reply. */
static void put_record(struct hapax__ddb_op *work)
{
    const uint8_t *v = work->exists && work->item.has_v ? work->item.v : NULL;
    const char *table = work->ddb->uri.table;
    bool put = work->write == HAPAX__WRITE;

    if (put && !encode(work))
        return;
    work->phase = PHASE_WRITE;
    if (put)
        hapax__ddb_ask_put(&work->out, table, &work->next, &work->put, v);
    else
        hapax__ddb_ask_delete(&work->out, table, &work->op->id, v);
    if (work->out.failed) {
        fail_memory(work);
        return;
    }
    hapax__aws_call_release(&work->call);
    work->call = (struct hapax__aws_call){
        .operation = put ? "PutItem" : "DeleteItem",
        .body = {(const uint8_t *)work->out.bytes, work->out.len},
        .deadline_us = work->deadline_us,
        .once = !put, /* a repeat would find no item, and not know why */
        .tag = work,
    };
    hapax__aws_submit(work->ddb->aws, &work->call);
}

static void save_over(struct hapax__ddb_op *work)
{
    if (work->part_error == HAPAX_ERR_NONE) {
        put_record(work);
        return;
    }
    if (work->part_error == HAPAX_ERR_NOMEM)
        hapax_store_fail(&work->ddb->base, HAPAX_ERR_NOMEM, "out of memory for a body");
    /* No record names the chunks, whether they were put or not. */
    fail(work,
         work->part_error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE : work->part_error);
}

/* Whether chunks of this TTL stay as long as the record that names them. */
static bool outlives(int64_t chunks_ttl_s, int64_t record_ttl_s)
{
    return chunks_ttl_s == 0 || (record_ttl_s > 0 && record_ttl_s <= chunks_ttl_s);
}

static void save(struct hapax__ddb_op *work)
{
    struct hapax_span body = work->next.outcome.body;
    uint8_t set[HAPAX__DDB_SET_LEN];
    int64_t ttl_s = hapax__ddb_ttl(hapax__shown_until(&work->next));

    if (work->saved.count > 0 && work->saved_body.ptr == body.ptr &&
        work->saved_body.len == body.len && body.ptr == work->op->outcome.body.ptr &&
        outlives(work->saved_ttl_s, ttl_s)) {
        work->put.chunks = work->saved;
        put_record(work);
        return;
    }
    sweep_saved(work, &work->item.chunks);
    if (!new_random(work, set, sizeof(set)))
        return;
    hapax__ddb_chunks_of(&work->saved, &work->op->id, set, body);
    work->put.chunks = work->saved;
    work->saved_body = body;
    work->saved_ttl_s = ttl_s > 0 ? ttl_s + HAPAX__DDB_SLACK_S : 0;
    work->phase = PHASE_SAVE;
    work->moving = &work->saved;
    work->part_next = 0;
    work->part_error = HAPAX_ERR_NONE;
    send_parts(work);
}

/* Whether the next record can name the chunks that are there: the same body, and a TTL that is late
 * enough. */
static bool keeps_chunks(const struct hapax__ddb_op *work)
{
    const struct hapax_span *old = &work->record.outcome.body, *new = &work->next.outcome.body;

    return work->exists && work->item.chunks.count > 0 && old->len > 0 && old->ptr == new->ptr &&
           old->len == new->len &&outlives(hapax__ddb_ttl(hapax__shown_until(&work->record)),
                                           hapax__ddb_ttl(hapax__shown_until(&work->next)));
}

/* Its body goes sooner than its item: so the body is put in chunks, which have their own TTL. */
static bool leaves_tombstone(const struct hapax_record *record)
{
    return hapax__shown_until(record) < record->expires_us;
}

static void write_next(struct hapax__ddb_op *work)
{
    size_t inline_max = leaves_tombstone(&work->next) ? 0 : work->ddb->uri.inline_max;

    memset(&work->put, 0, sizeof(work->put));
    if (work->write == HAPAX__DELETE) {
        put_record(work);
    } else if (keeps_chunks(work)) {
        work->put.chunks = work->item.chunks;
        put_record(work);
    } else if (hapax__ddb_fits(&work->next, inline_max)) {
        put_record(work);
    } else {
        save(work);
    }
}

static void landed(struct hapax__ddb_op *work)
{
    const struct hapax_id *id = &work->op->id;
    bool put = work->write == HAPAX__WRITE;

    if (put && work->next.state == HAPAX_STATE_STARTED && work->put.chunks.count == 0)
        hapax__ddb_recent_put(work->ddb->recent, id, &work->put);
    else
        hapax__ddb_recent_drop(work->ddb->recent, id);
    if (work->exists && !same_set(&work->item.chunks, &work->put.chunks))
        sweep_later(work, &work->item.chunks);
    sweep_saved(work, &work->put.chunks);
    publish(work);
}

static void take_write(struct hapax__ddb_op *work)
{
    struct hapax__aws_call *call = &work->call;
    enum hapax__ddb_seen seen;

    if (call->result == HAPAX__AWS_OK && hapax__ddb_is_reply(call->reply)) {
        landed(work);
        return;
    }
    if (call->result == HAPAX__AWS_OK) { /* some other server's reply */
        work->maybe = true;
        fail(work, hapax__ddb_nonsense(work->ddb));
        return;
    }
    work->maybe |= call->unsure; /* a repeat's reply says nothing of the try before */
    if (call->result != HAPAX__AWS_REFUSED ||
        strcmp(call->error, "ConditionalCheckFailedException") != 0) {
        fail(work, hapax__ddb_error(work->ddb, call));
        return;
    }
    if (work->write == HAPAX__WRITE && hapax__ddb_shows(call->reply, work->put.v)) {
        /* An earlier try landed. The arena stays, since the judgement borrows from it. */
        landed(work);
        return;
    }
    seen = read_reply(work);
    hapax__ddb_recent_seen(work->ddb->recent, &work->op->id, &work->item);
    if (seen == HAPAX__DDB_NONE || seen == HAPAX__DDB_NONSENSE)
        read_item(work); /* the server sends no old items, or it is gone */
    else
        take_seen(work, seen);
}

/* ---- judging --------------------------------------------------------------------------- */

/* Judges the item. Leases are lengthened by the skew margin, so that a judge whose clock is ahead
 * by the margin still waits for their end. */
static void judge(struct hapax__ddb_op *work)
{
    struct hapax_op *judged = &work->judged;
    int64_t skew_ms = work->ddb->uri.skew_ms;

    *judged = *work->op;
    if (judged->kind == HAPAX_OP_CLAIM || judged->kind == HAPAX_OP_RENEW)
        judged->lease_ms += skew_ms;
    work->write = hapax__machine(work->exists && !work->gone ? &work->record : NULL, judged,
                                 hapax__wall_us(), &work->next);
    if (work->write != HAPAX__KEEP) {
        write_next(work);
    } else if (work->guess) {
        read_item(work);
    } else {
        sweep_saved(work, &work->item.chunks);
        publish(work);
    }
}

/* Recalls what this handle wrote last under this id. False: it does not know. */
static bool recall(struct hapax__ddb_op *work)
{
    return hapax__ddb_recent_get(work->ddb->recent, &work->item, &work->op->id, &work->arena) &&
           hapax__record_decode(&work->record, &work->op->id, work->item.r) == HAPAX_ERR_NONE;
}

struct hapax__ddb_op *hapax__ddb_op_new(struct hapax__ddb *ddb, struct hapax_op *op,
                                        int64_t deadline_us)
{
    struct hapax__ddb_op *work = calloc(1, sizeof(*work));

    if (!work)
        return NULL;
    work->ddb = ddb;
    work->op = op;
    work->deadline_us = deadline_us;
    work->guess = op->kind != HAPAX_OP_READ;
    if (op->kind == HAPAX_OP_CLAIM || op->kind == HAPAX_OP_IMPORT) {
        judge(work);
    } else if (op->kind != HAPAX_OP_READ && recall(work)) {
        work->exists = true;
        judge(work);
    } else {
        read_item(work);
    }
    return work;
}

struct hapax__ddb_op *hapax__ddb_op_take(struct hapax__aws_call *call)
{
    struct hapax__ddb_op *work = call->tag;

    if (call != &work->call) {
        for (size_t p = 0; p < WINDOW; p++)
            if (call == &work->parts[p].call)
                take_part(work, &work->parts[p]);
    } else if (work->phase == PHASE_READ) {
        take_read(work);
    } else {
        assert(work->phase == PHASE_WRITE);
        take_write(work);
    }
    return work;
}

bool hapax__ddb_op_over(const struct hapax__ddb_op *work)
{
    return work->phase == PHASE_OVER;
}

void hapax__ddb_op_free(struct hapax__ddb_op *work)
{
    assert(work->phase == PHASE_OVER && work->part_busy == 0);
    hapax__aws_call_release(&work->call);
    for (size_t p = 0; work->parts && p < WINDOW; p++) {
        hapax__aws_call_release(&work->parts[p].call);
        free(work->parts[p].out.bytes);
    }
    free(work->parts);
    free(work->out.bytes);
    free(work->encoded);
    hapax__arena_release(&work->arena);
    free(work);
}
