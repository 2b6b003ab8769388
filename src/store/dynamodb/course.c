/* SPDX-License-Identifier: Apache-2.0
 *
 * One op on DynamoDB, from its first call to its answer. The machine judges here, on what stood in the table, or is taken to
 * stand there; its verdict becomes the answer once a write has landed whose condition is that nothing has changed since:
 *
 *   CLAIM              put what an absent record becomes, if there is no item          one round trip if that is so,
 *   COMPLETE, RENEW …  put on top of what this handle wrote last, if it did            or if the machine keeps what came back
 *   else               get the item, judge, and where it is to be written, put         two
 *
 * A condition that fails brings the item that is there, which is judged anew; so each round of two who contend moves one
 * of them on. A body that does not fit the item is put beside the record before it, under a set of its own, and named by the
 * record: nobody reads a set before it is whole.
 *
 * The invariant: a verdict is published only when it was judged on what a consistent read or a failed condition showed, or
 * when its write's condition held. An error is UNAVAILABLE only while no write of this op may have been applied. A guess
 * that would need no write is not an answer: the item is looked at first.
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
#define SWEEP_US INT64_C(1000000) /* for removing chunks that nobody names any more */
#define SWEEPS   2u

enum phase {
    PHASE_LOOK, /* the item is asked for */
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

struct hapax__ddb_course {
    struct hapax__ddb *ddb;
    struct hapax_op *op;
    int64_t deadline_us;
    enum phase phase;

    /* what stands there */
    bool exists;
    bool guess; /* nobody has said so */
    bool
        gone; /* it had expired when it was looked at, and stays so if the clock is set back: its body was not fetched */
    struct hapax__ddb_item item;
    struct hapax_record record; /* of item; borrows from arena */
    struct hapax_arena arena;

    /* what was judged */
    struct hapax_op said;
    enum hapax__write write;
    struct hapax_record next;
    struct hapax__ddb_item put; /* what is written; its r is `encoded` */
    uint8_t *encoded;
    bool maybe; /* an earlier write of this op may have been applied */

    /* chunks */
    struct hapax__ddb_chunks saved; /* put by this op */
    struct hapax_span saved_body;
    int64_t saved_ttl_s;
    bool missed; /* a chunk was not there, when the item was of this version: */
    uint8_t missed_v[HAPAX__DDB_V_LEN];
    struct hapax__ddb_chunks sweeps[SWEEPS];
    size_t sweep_count;

    /* calls */
    struct hapax__aws_call call;
    struct hapax__json_out out;
    struct part *parts; /* WINDOW of them, once they are needed */
    const struct hapax__ddb_chunks *moving; /* what FETCH, SAVE and SWEEP are about */
    uint8_t *body; /* FETCH: where to */
    size_t part_next, part_busy;
    enum hapax_error part_error; /* of the first that failed */
    bool part_missing;
};

static void judge(struct hapax__ddb_course *course);
static void look(struct hapax__ddb_course *course);
static void save_over(struct hapax__ddb_course *course);
static void fetch_over(struct hapax__ddb_course *course);

/* ---- calls ----------------------------------------------------------------------------- */

static void send(struct hapax__ddb_course *course, struct hapax__aws_call *call,
                 const struct hapax__json_out *out, const char *operation, int64_t deadline_us)
{
    hapax__aws_call_release(call);
    *call = (struct hapax__aws_call){
        .operation = operation,
        .body = {(const uint8_t *)out->bytes, out->len},
        .deadline_us = deadline_us,
        .tag = course,
    };
    hapax__aws_submit(course->ddb->aws, call);
}

/* ---- the end --------------------------------------------------------------------------- */

static bool same_set(const struct hapax__ddb_chunks *a, const struct hapax__ddb_chunks *b)
{
    return a->count > 0 && b->count > 0 && memcmp(a->set, b->set, sizeof(a->set)) == 0;
}

static void send_parts(struct hapax__ddb_course *course);

/* Removes the next set that nobody names any more; what stays for want of time goes by the table's TTL. */
static void sweep(struct hapax__ddb_course *course)
{
    int64_t until_us = hapax__monotonic_us() + SWEEP_US;

    if (course->phase != PHASE_SWEEP && until_us < course->deadline_us)
        course->deadline_us = until_us;
    course->phase = PHASE_OVER;
    if (course->sweep_count == 0)
        return;
    course->phase = PHASE_SWEEP;
    course->moving = &course->sweeps[--course->sweep_count];
    course->part_next = 0;
    course->part_error = HAPAX_ERR_NONE;
    send_parts(course);
}

static void sweep_later(struct hapax__ddb_course *course, const struct hapax__ddb_chunks *chunks)
{
    if (chunks->count > 0 && course->sweep_count < SWEEPS)
        course->sweeps[course->sweep_count++] = *chunks;
}

/* What this op put beside its record and the record does not name. */
static void sweep_saved(struct hapax__ddb_course *course, const struct hapax__ddb_chunks *named)
{
    if (!same_set(&course->saved, named))
        sweep_later(course, &course->saved);
    course->saved.count = 0;
}

/* Who holds a claim is told of its lease without the margin: it is to renew and to give up by that. */
static void hide_margin(const struct hapax__ddb_course *course, struct hapax_op *op)
{
    bool holds =
        op->verdict == HAPAX_CLAIMED || (op->kind == HAPAX_OP_RENEW && op->verdict == HAPAX_OK);

    if (holds && op->record.lease_until_us > 0)
        op->record.lease_until_us -= course->ddb->uri.skew_ms * US_PER_MS;
}

static void publish(struct hapax__ddb_course *course)
{
    struct hapax_op *op = course->op;

    op->verdict = course->said.verdict;
    op->error = HAPAX_ERR_NONE;
    op->differs = course->said.differs;
    op->record = course->said.record;
    op->now_us = course->said.now_us;
    hide_margin(course, op);
    course->ddb->kept += op->record.outcome.headers.len + op->record.outcome.body.len;
    (void)hapax__store_keep(&course->ddb->base, op);
    sweep(course);
}

/* What refuses a repeat says nothing of the try before it. */
static void fail(struct hapax__ddb_course *course, enum hapax_error error)
{
    assert(error != HAPAX_ERR_NONE);
    if (course->maybe && (error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_REFUSED ||
                          error == HAPAX_ERR_NOMEM || error == HAPAX_ERR_UNSUPPORTED))
        error = HAPAX_ERR_INDETERMINATE;
    course->op->verdict = HAPAX_NO_VERDICT;
    course->op->error = error;
    if (!course->maybe && error != HAPAX_ERR_INDETERMINATE)
        sweep_saved(course, &course->item.chunks);
    sweep(course);
}

static void fail_memory(struct hapax__ddb_course *course)
{
    fail(course,
         hapax_store_fail(&course->ddb->base, HAPAX_ERR_NOMEM, "out of memory for a record"));
}

/* ---- chunks under way ------------------------------------------------------------------ */

static const char *put_part(struct hapax__ddb_course *course, struct part *part)
{
    const char *table = course->ddb->uri.table;
    const struct hapax_id *id = &course->op->id;

    switch (course->phase) {
    case PHASE_FETCH:
        hapax__ddb_ask_get_chunk(&part->out, table, id, course->moving, part->i);
        return "GetItem";
    case PHASE_SAVE:
        hapax__ddb_ask_put_chunk(&part->out, table, id, course->moving, part->i, course->saved_body,
                                 course->saved_ttl_s);
        return "PutItem";
    default:
        assert(course->phase == PHASE_SWEEP);
        hapax__ddb_ask_delete_chunk(&part->out, table, id, course->moving, part->i);
        return "DeleteItem";
    }
}

static void parts_over(struct hapax__ddb_course *course)
{
    switch (course->phase) {
    case PHASE_FETCH:
        fetch_over(course);
        return;
    case PHASE_SAVE:
        save_over(course);
        return;
    default:
        assert(course->phase == PHASE_SWEEP);
        sweep(course);
    }
}

/* Sends as many as fit the window; when the last one is back, the phase is over. */
static void send_parts(struct hapax__ddb_course *course)
{
    if (!course->parts)
        course->parts = calloc(WINDOW, sizeof(*course->parts));
    if (!course->parts)
        course->part_error = HAPAX_ERR_NOMEM;
    for (size_t p = 0; p < WINDOW && course->part_error == HAPAX_ERR_NONE &&
                       course->part_next < course->moving->count;
         p++) {
        struct part *part = &course->parts[p];
        const char *operation;

        if (part->busy)
            continue;
        part->i = course->part_next++;
        operation = put_part(course, part);
        if (part->out.failed) {
            course->part_error = HAPAX_ERR_NOMEM;
            break;
        }
        part->busy = true;
        course->part_busy++;
        send(course, &part->call, &part->out, operation, course->deadline_us);
    }
    if (course->part_busy == 0)
        parts_over(course);
}

static enum hapax_error nonsense(struct hapax__ddb_course *course)
{
    return hapax_store_fail(&course->ddb->base, HAPAX_ERR_UNAVAILABLE,
                            "dynamodb: a reply makes no sense");
}

/* Copies a chunk to its place. */
static enum hapax_error take_chunk(struct hapax__ddb_course *course, const struct part *part)
{
    size_t len = hapax__ddb_chunk_len(course->moving, part->i);
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_arena scratch = {NULL};
    enum hapax__ddb_seen seen;
    struct hapax_span bytes;

    seen = hapax__ddb_take_chunk(&bytes, &scratch, part->call.reply);
    if (seen == HAPAX__DDB_FOUND && bytes.len == len) {
        memcpy(course->body + part->i * HAPAX__DDB_CHUNK, bytes.ptr, len);
    } else if (seen == HAPAX__DDB_NOMEM) {
        error = HAPAX_ERR_NOMEM;
    } else if (seen == HAPAX__DDB_NONSENSE) {
        error = nonsense(course);
    } else {
        course->part_missing = true;
        error = HAPAX_ERR_CORRUPT;
    }
    hapax__arena_release(&scratch);
    return error;
}

static void take_part(struct hapax__ddb_course *course, struct part *part)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    part->busy = false;
    course->part_busy--;
    if (course->phase == PHASE_FETCH && part->call.fate == HAPAX__AWS_OK)
        error = take_chunk(course, part);
    else if (course->phase != PHASE_SWEEP && part->call.fate != HAPAX__AWS_OK)
        error = hapax__ddb_error(course->ddb, &part->call);
    else if (course->phase == PHASE_SAVE && !hapax__ddb_is_reply(part->call.reply))
        error = nonsense(course);
    hapax__aws_call_release(&part->call);
    if (course->part_error == HAPAX_ERR_NONE)
        course->part_error = error;
    send_parts(course);
}

/* ---- reading --------------------------------------------------------------------------- */

static void look(struct hapax__ddb_course *course)
{
    course->phase = PHASE_LOOK;
    hapax__ddb_ask_get(&course->out, course->ddb->uri.table, &course->op->id);
    if (course->out.failed)
        fail_memory(course);
    else
        send(course, &course->call, &course->out, "GetItem", course->deadline_us);
}

static void put_record(struct hapax__ddb_course *course);

/* An operator may forget what cannot be read: nobody else can ever do anything with it. */
static void damaged(struct hapax__ddb_course *course, enum hapax_error error, const char *why)
{
    struct hapax_op *op = course->op;

    if (error != HAPAX_ERR_CORRUPT || op->kind != HAPAX_OP_RESOLVE || !op->force ||
        op->resolve != HAPAX_RESOLVE_FORGET) {
        fail(course, hapax__ddb_unreadable(course->ddb, &op->id, error, why));
        return;
    }
    course->said = *op;
    course->said.verdict = HAPAX_OK;
    course->said.differs = HAPAX_DIFFERS_NOT;
    memset(&course->said.record, 0, sizeof(course->said.record));
    course->said.record.id = op->id;
    course->said.now_us = hapax__wall_us();
    course->write = HAPAX__DELETE;
    course->guess = false;
    put_record(course);
}

static void fetch_over(struct hapax__ddb_course *course)
{
    struct hapax_span body = {course->body, course->item.chunks.len};

    if (course->part_missing && hapax__expired(&course->record, hapax__wall_us())) {
        course->gone = true;
        judge(course); /* the table's TTL takes a record and its chunks one by one */
    } else if (course->part_missing && (!course->missed || memcmp(course->missed_v, course->item.v,
                                                                  sizeof(course->item.v)) != 0)) {
        course->missed = true; /* it may have been replaced meanwhile, with its chunks */
        memcpy(course->missed_v, course->item.v, sizeof(course->item.v));
        look(course);
    } else if (course->part_missing) {
        damaged(course, HAPAX_ERR_CORRUPT, "a part of its body is missing");
    } else if (course->part_error == HAPAX_ERR_NOMEM) {
        fail_memory(course);
    } else if (course->part_error != HAPAX_ERR_NONE) {
        fail(course, course->part_error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE
                                                                   : course->part_error);
    } else if (!hapax__ddb_chunks_hold(&course->item.chunks, &course->op->id, body)) {
        damaged(course, HAPAX_ERR_CORRUPT, "its body is damaged");
    } else {
        course->record.outcome.body = body;
        judge(course);
    }
}

static void fetch(struct hapax__ddb_course *course)
{
    course->phase = PHASE_FETCH;
    course->moving = &course->item.chunks;
    course->part_next = 0;
    course->part_error = HAPAX_ERR_NONE;
    course->part_missing = false;
    course->body = hapax__arena_alloc(&course->arena, course->item.chunks.len);
    if (!course->body)
        fail_memory(course);
    else
        send_parts(course);
}

/* Takes what a read or a failed condition showed. */
static void take_seen(struct hapax__ddb_course *course, enum hapax__ddb_seen seen)
{
    struct hapax_record *record = &course->record;
    enum hapax_error error;

    course->guess = course->gone = false;
    course->exists = seen == HAPAX__DDB_FOUND || seen == HAPAX__DDB_DAMAGED;
    if (seen == HAPAX__DDB_NONE) {
        judge(course);
        return;
    }
    if (seen == HAPAX__DDB_NOMEM) {
        fail_memory(course);
        return;
    }
    if (seen == HAPAX__DDB_NONSENSE) {
        fail(course, nonsense(course));
        return;
    }
    error = seen == HAPAX__DDB_DAMAGED
                ? HAPAX_ERR_CORRUPT
                : hapax__record_decode(record, &course->op->id, course->item.r);
    if (error == HAPAX_ERR_NONE && course->item.chunks.count > 0 && record->outcome.body.len > 0)
        error = HAPAX_ERR_CORRUPT;
    if (error != HAPAX_ERR_NONE)
        damaged(course, error,
                error == HAPAX_ERR_CORRUPT ? "it is damaged" : "a newer version of hapax wrote it");
    else if (course->item.chunks.count > 0 &&
             !(course->gone = hapax__expired(record, hapax__wall_us())))
        fetch(course);
    else
        judge(course);
}

static enum hapax__ddb_seen read_reply(struct hapax__ddb_course *course)
{
    enum hapax__ddb_seen seen;

    hapax__arena_reset(&course->arena);
    seen = hapax__ddb_take_item(&course->item, &course->arena, course->call.reply);
    hapax__aws_call_release(&course->call); /* what the item shows was decoded into the arena */
    return seen;
}

static void take_look(struct hapax__ddb_course *course)
{
    enum hapax_error error;

    if (course->call.fate == HAPAX__AWS_OK) {
        take_seen(course, read_reply(course));
        return;
    }
    error = hapax__ddb_error(course->ddb, &course->call);
    fail(course, error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE : error);
}

/* ---- writing --------------------------------------------------------------------------- */

static bool new_random(struct hapax__ddb_course *course, uint8_t *out, size_t len)
{
    if (getrandom(out, len, 0) == (ssize_t)len)
        return true;
    fail(course, hapax_store_fail(&course->ddb->base, HAPAX_ERR_UNAVAILABLE,
                                  "dynamodb: no random bytes: the version of a write needs them"));
    return false;
}

/* Encodes what is to be written; a body in chunks stays out of it. */
static bool encode(struct hapax__ddb_course *course)
{
    struct hapax_record record = course->next;
    uint8_t *bytes;
    size_t size;

    if (course->put.chunks.count > 0)
        record.outcome.body = (struct hapax_span){NULL, 0};
    size = hapax__record_size(&record);
    bytes = realloc(course->encoded, size);
    if (!bytes) {
        fail_memory(course);
        return false;
    }
    course->encoded = bytes;
    hapax__record_encode(bytes, &record);
    course->put.r = (struct hapax_span){bytes, size};
    course->put.has_v = true;
    return new_random(course, course->put.v, sizeof(course->put.v));
}

/* One conditional call; whatever it brings, take_write() goes on. */
static void put_record(struct hapax__ddb_course *course)
{
    const uint8_t *v = course->exists && course->item.has_v ? course->item.v : NULL;
    const char *table = course->ddb->uri.table;
    bool put = course->write == HAPAX__WRITE;

    if (put && !encode(course))
        return;
    course->phase = PHASE_WRITE;
    if (put)
        hapax__ddb_ask_put(&course->out, table, &course->next, &course->put, v);
    else
        hapax__ddb_ask_delete(&course->out, table, &course->op->id, v);
    if (course->out.failed) {
        fail_memory(course);
        return;
    }
    hapax__aws_call_release(&course->call);
    course->call = (struct hapax__aws_call){
        .operation = put ? "PutItem" : "DeleteItem",
        .body = {(const uint8_t *)course->out.bytes, course->out.len},
        .deadline_us = course->deadline_us,
        .once = !put, /* a repeat would find the item gone, and not know by whom */
        .tag = course,
    };
    hapax__aws_submit(course->ddb->aws, &course->call);
}

static void save_over(struct hapax__ddb_course *course)
{
    if (course->part_error == HAPAX_ERR_NONE) {
        put_record(course);
        return;
    }
    if (course->part_error == HAPAX_ERR_NOMEM)
        hapax_store_fail(&course->ddb->base, HAPAX_ERR_NOMEM, "out of memory for a body");
    /* The record does not name them, whatever became of them. */
    fail(course, course->part_error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE
                                                               : course->part_error);
}

/* The chunks' TTL: never before that of the record that names them. */
static bool outlives(int64_t chunks_ttl_s, int64_t record_ttl_s)
{
    return chunks_ttl_s == 0 || (record_ttl_s > 0 && record_ttl_s <= chunks_ttl_s);
}

static void save(struct hapax__ddb_course *course)
{
    struct hapax_span body = course->next.outcome.body;
    uint8_t set[HAPAX__DDB_SET_LEN];
    int64_t ttl_s = hapax__ddb_ttl(&course->next);

    if (course->saved.count > 0 && course->saved_body.ptr == body.ptr &&
        course->saved_body.len == body.len && body.ptr == course->op->outcome.body.ptr &&
        outlives(course->saved_ttl_s, ttl_s)) {
        course->put.chunks = course->saved;
        put_record(course);
        return;
    }
    sweep_saved(course, &course->item.chunks);
    if (!new_random(course, set, sizeof(set)))
        return;
    hapax__ddb_chunks_of(&course->saved, &course->op->id, set, body);
    course->put.chunks = course->saved;
    course->saved_body = body;
    course->saved_ttl_s = ttl_s > 0 ? ttl_s + HAPAX__DDB_SLACK_S : 0;
    course->phase = PHASE_SAVE;
    course->moving = &course->saved;
    course->part_next = 0;
    course->part_error = HAPAX_ERR_NONE;
    send_parts(course);
}

/* Whether the chunks that are there serve the next record as well: the same body, and no end before its own. */
static bool keeps_chunks(const struct hapax__ddb_course *course)
{
    const struct hapax_span *old = &course->record.outcome.body, *new = &course->next.outcome.body;

    return course->exists && course->item.chunks.count > 0 && old->ptr == new->ptr &&
           old->len ==
               new->len &&outlives(hapax__ddb_ttl(&course->record), hapax__ddb_ttl(&course->next));
}

static void write_next(struct hapax__ddb_course *course)
{
    memset(&course->put, 0, sizeof(course->put));
    if (course->write == HAPAX__DELETE) {
        put_record(course);
    } else if (keeps_chunks(course)) {
        course->put.chunks = course->item.chunks;
        put_record(course);
    } else if (hapax__ddb_fits(&course->next, course->ddb->uri.inline_max)) {
        put_record(course);
    } else {
        save(course);
    }
}

static void landed(struct hapax__ddb_course *course)
{
    const struct hapax_id *id = &course->op->id;
    bool put = course->write == HAPAX__WRITE;

    if (put && course->next.state == HAPAX_STATE_STARTED && course->put.chunks.count == 0)
        hapax__ddb_recent_put(course->ddb->recent, id, &course->put);
    else
        hapax__ddb_recent_drop(course->ddb->recent, id);
    if (course->exists && !same_set(&course->item.chunks, &course->put.chunks))
        sweep_later(course, &course->item.chunks);
    sweep_saved(course, &course->put.chunks);
    publish(course);
}

static void take_write(struct hapax__ddb_course *course)
{
    struct hapax__aws_call *call = &course->call;
    enum hapax__ddb_seen seen;

    if (call->fate == HAPAX__AWS_OK && hapax__ddb_is_reply(call->reply)) {
        landed(course);
        return;
    }
    if (call->fate == HAPAX__AWS_OK) { /* whoever said so */
        course->maybe = true;
        fail(course, nonsense(course));
        return;
    }
    course->maybe |= call->unsure; /* whatever the service says to the repeat */
    if (call->fate != HAPAX__AWS_REFUSED ||
        strcmp(call->error, "ConditionalCheckFailedException") != 0) {
        fail(course, hapax__ddb_error(course->ddb, call));
        return;
    }
    if (course->write == HAPAX__WRITE && hapax__ddb_shows(call->reply, course->put.v)) {
        /* An earlier try landed. The arena stays as it is: what was judged borrows from it. */
        landed(course);
        return;
    }
    seen = read_reply(course);
    hapax__ddb_recent_seen(course->ddb->recent, &course->op->id, &course->item);
    if (seen == HAPAX__DDB_NONE || seen == HAPAX__DDB_NONSENSE)
        look(course); /* the server does not send it along, or it is gone */
    else
        take_seen(course, seen);
}

/* ---- judging --------------------------------------------------------------------------- */

/* Leases are lengthened by the skew margin, so that a judge whose clock is ahead by that much waits for their end. */
static void judge(struct hapax__ddb_course *course)
{
    struct hapax_op *said = &course->said;
    int64_t skew_ms = course->ddb->uri.skew_ms;

    *said = *course->op;
    if (said->kind == HAPAX_OP_CLAIM || said->kind == HAPAX_OP_RENEW)
        said->lease_ms += skew_ms;
    course->write = hapax__machine(course->exists && !course->gone ? &course->record : NULL, said,
                                   hapax__wall_us(), &course->next);
    if (course->write != HAPAX__KEEP) {
        write_next(course);
    } else if (course->guess) {
        look(course);
    } else {
        sweep_saved(course, &course->item.chunks);
        publish(course);
    }
}

/* What this handle wrote last under this id, if it still knows. */
static bool recall(struct hapax__ddb_course *course)
{
    return hapax__ddb_recent_get(course->ddb->recent, &course->item, &course->op->id,
                                 &course->arena) &&
           hapax__record_decode(&course->record, &course->op->id, course->item.r) == HAPAX_ERR_NONE;
}

struct hapax__ddb_course *hapax__ddb_course_new(struct hapax__ddb *ddb, struct hapax_op *op,
                                                int64_t deadline_us)
{
    struct hapax__ddb_course *course = calloc(1, sizeof(*course));

    if (!course)
        return NULL;
    course->ddb = ddb;
    course->op = op;
    course->deadline_us = deadline_us;
    course->guess = op->kind != HAPAX_OP_READ;
    if (op->kind == HAPAX_OP_CLAIM) {
        judge(course);
    } else if (op->kind != HAPAX_OP_READ && recall(course)) {
        course->exists = true;
        judge(course);
    } else {
        look(course);
    }
    return course;
}

struct hapax__ddb_course *hapax__ddb_course_take(struct hapax__aws_call *call)
{
    struct hapax__ddb_course *course = call->tag;

    if (call != &course->call) {
        for (size_t p = 0; p < WINDOW; p++)
            if (call == &course->parts[p].call)
                take_part(course, &course->parts[p]);
    } else if (course->phase == PHASE_LOOK) {
        take_look(course);
    } else {
        assert(course->phase == PHASE_WRITE);
        take_write(course);
    }
    return course;
}

bool hapax__ddb_course_over(const struct hapax__ddb_course *course)
{
    return course->phase == PHASE_OVER;
}

void hapax__ddb_course_free(struct hapax__ddb_course *course)
{
    assert(course->phase == PHASE_OVER && course->part_busy == 0);
    hapax__aws_call_release(&course->call);
    for (size_t p = 0; course->parts && p < WINDOW; p++) {
        hapax__aws_call_release(&course->parts[p].call);
        free(course->parts[p].out.bytes);
    }
    free(course->parts);
    free(course->out.bytes);
    free(course->encoded);
    hapax__arena_release(&course->arena);
    free(course);
}
