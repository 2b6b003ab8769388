/* SPDX-License-Identifier: Apache-2.0
 *
 * LIST on DynamoDB: a scan of the table, page by page, from the cursor on. There is no index. So
 * each LIST reads, and pays for, all items between its cursor and its end; a filter only keeps
 * unwanted items from being sent. The order is that of the hash of an id, and does not change.
 *
 * The invariant: a record that is there for the whole list is shown once. Rejected: an index of
 * unfinished records, whose upkeep costs each claim and each completion another write.
 */
#include "dynamodb.h"

#include "base/clock.h"
#include "base/time.h"
#include "core/machine.h"
#include "core/record.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 16u /* of one op; a page is at most 1 MB of the table */
#define PAGE_MIN  256u /* items read for a LIST that wants few */
#define PAGE_MAX  10000u /* more than 1 MB has */

struct list {
    struct hapax__ddb *ddb;
    struct hapax_op *op;
    uint32_t limit;
    struct hapax_id from; /* the next page begins behind it */
    bool over;
};

static enum hapax_error no_memory(struct list *list)
{
    return hapax_store_fail(&list->ddb->base, HAPAX_ERR_NOMEM, "out of memory for a list");
}

/* Shows a record, if it is wanted. */
static enum hapax_error show(struct list *list, const struct hapax_record *record)
{
    struct hapax_arena *arena = list->ddb->base.arena;
    struct hapax_op *op = list->op;
    struct hapax_record *to;

    if (!hapax__listed(record, op, op->now_us))
        return HAPAX_ERR_NONE;
    assert(op->records);
    to = &op->records[op->count];
    *to = *record;
    memset(&to->mark, 0, sizeof(to->mark));
    to->outcome.headers = to->outcome.body = (struct hapax_span){NULL, 0};
    to->scope = hapax__arena_copy(arena, record->scope);
    to->what = hapax__arena_copy(arena, record->what);
    to->resolved_by = hapax__arena_copy(arena, record->resolved_by);
    if ((to->scope.len > 0 && !to->scope.ptr) || (to->what.len > 0 && !to->what.ptr) ||
        (to->resolved_by.len > 0 && !to->resolved_by.ptr))
        return no_memory(list);
    op->count++;
    return HAPAX_ERR_NONE;
}

static enum hapax_error take_listed(struct list *list, struct hapax_arena *arena,
                                    struct hapax_span item)
{
    struct hapax_record record;
    struct hapax_id id;
    struct hapax_span r;
    enum hapax_error error = HAPAX_ERR_CORRUPT;

    switch (hapax__ddb_read_listed(&id, &r, arena, item)) {
    case HAPAX__DDB_FOUND:
        error = hapax__record_decode(&record, &id, r);
        break;
    case HAPAX__DDB_DAMAGED:
        break;
    case HAPAX__DDB_NOMEM:
        return no_memory(list);
    default:
        return hapax__ddb_nonsense(list->ddb);
    }
    if (error != HAPAX_ERR_NONE)
        return hapax__ddb_unreadable(list->ddb, &id, error, NULL);
    list->from = id;
    return show(list, &record);
}

static enum hapax_error take_last_key(struct list *list, struct hapax_arena *arena,
                                      struct hapax_span root)
{
    struct hapax_span value, id;
    enum hapax__ddb_seen seen;

    list->over = !hapax__raw_member(&value, root, "LastEvaluatedKey");
    if (list->over)
        return HAPAX_ERR_NONE;
    if (!hapax__raw_member(&value, value, "id.B"))
        return hapax__ddb_nonsense(list->ddb);
    seen = hapax__ddb_bytes(&id, arena, value);
    if (seen == HAPAX__DDB_NOMEM)
        return no_memory(list);
    if (seen != HAPAX__DDB_FOUND || id.len != sizeof(list->from.bytes))
        return hapax__ddb_nonsense(list->ddb);
    memcpy(list->from.bytes, id.ptr, id.len);
    return HAPAX_ERR_NONE;
}

/* Takes records from a page until the list is full; the next page then begins behind the last. */
static enum hapax_error take_page(struct list *list, struct hapax_span reply)
{
    struct hapax_arena arena = {NULL};
    struct hapax__raw_walk walk;
    struct hapax_span root, items, name, item;
    enum hapax_error error = HAPAX_ERR_NONE;
    bool full = false;

    if (!hapax__raw_check(&root, reply) || !hapax__raw_member(&items, root, "Items") ||
        !hapax__raw_is_array(items))
        return hapax__ddb_nonsense(list->ddb);
    hapax__raw_begin(&walk, items);
    while (error == HAPAX_ERR_NONE && !full && hapax__raw_next(&walk, &name, &item)) {
        full = list->op->count == list->limit;
        if (!full)
            error = take_listed(list, &arena, item);
        hapax__arena_reset(&arena);
    }
    if (error == HAPAX_ERR_NONE && !full)
        error = take_last_key(list, &arena, root);
    hapax__arena_release(&arena);
    return error;
}

/* The first page is about as large as the list; the next pages are whole, since the filter left
 * little of the first. */
static enum hapax_error ask_page(struct list *list, unsigned page, struct hapax__json_out *out,
                                 struct hapax__aws_call *call, int64_t deadline_us)
{
    const struct hapax_op *op = list->op;
    uint32_t items = page > 0 ? PAGE_MAX : list->limit * 2 > PAGE_MIN ? list->limit * 2 : PAGE_MIN;
    enum hapax_error error;

    hapax__ddb_ask_scan(out, list->ddb->uri.table, op, &list->from, items,
                        hapax__listed_until(op, op->now_us));
    if (out->failed)
        return no_memory(list);
    hapax__ddb_ask(list->ddb->aws, call, "Scan", out, deadline_us);
    if (call->result == HAPAX__AWS_OK)
        return take_page(list, call->reply);
    error = hapax__ddb_error(list->ddb, call);
    return error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE
                                            : error; /* nothing is written */
}

enum hapax_error hapax__ddb_list(struct hapax__ddb *ddb, struct hapax_op *op, int64_t deadline_us)
{
    struct list list = {
        .ddb = ddb, .op = op, .limit = op->limit ? op->limit : HAPAX_LIST_MAX, .from = op->cursor};
    struct hapax__json_out out = {0};
    struct hapax__aws_call call = {.operation = NULL};
    enum hapax_error error = HAPAX_ERR_NONE;
    int64_t stop_us = deadline_us - ddb->uri.timeout_ms * US_PER_MS / 2; /* what came is kept */

    op->now_us = hapax__wall_us();
    op->records = hapax_store_memory(&ddb->base, list.limit * sizeof(*op->records));
    if (!op->records)
        error = no_memory(&list);
    for (unsigned page = 0;
         error == HAPAX_ERR_NONE && page < PAGES_MAX && !list.over &&
         (page == 0 || (op->count < list.limit && hapax__monotonic_us() < stop_us));
         page++)
        error = ask_page(&list, page, &out, &call, deadline_us);
    hapax__aws_call_release(&call);
    free(out.bytes);
    op->error = error;
    if (error != HAPAX_ERR_NONE)
        return error;
    op->verdict = HAPAX_FOUND;
    op->more = !list.over;
    if (op->more)
        op->next_cursor = list.from;
    return HAPAX_ERR_NONE;
}
