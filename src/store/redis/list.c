/* SPDX-License-Identifier: Apache-2.0
 *
 * LIST and PURGE on Redis. LIST walks each primary with SCAN, step by step, and looks up the
 * records that a step found. LIST has no order, and a record may come twice. PURGE does nothing:
 * Redis forgets what has expired, and a dead claim under hold becomes `unknown` at its next CLAIM.
 * Rejected: a walk through all keys for those claims alone, since LIST finds them.
 *
 * The invariant: a record that is there for the whole list is shown. SCAN promises this for its
 * cursors, and the extent of a step is not fixed: it depends on COUNT and on the keys that came and
 * went. So a step is shown whole or not at all. A step that is over the limit, or that has a
 * damaged record, is taken again in halves. Only the smallest step is cut where it is still too
 * much. The next list goes on behind the cut; it starts that step anew where the step's extent has
 * changed.
 *
 * A cursor means something to one process alone, which hashes by a secret of its own. Where another
 * process serves in its place (a restart, a failover), its node is walked from the beginning.
 * Rejected: "after this id" within any step, which passes over records as soon as a step grows.
 *
 * A record that leaves a tombstone has two keys, and SCAN finds both. Such a record is shown at its
 * tombstone's, which outlives the other; but where it was completed after the walk began, SCAN may
 * have been past its new tombstone by then, so it is shown at its own key as well.
 */
#include "redis.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "core/machine.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX  256u /* keys of a step, roughly */
#define STEPS_MAX  64u /* of one op */
#define LOOKS_MAX  64u /* records looked up in one call */
#define LOOKS_SIZE (1u << 20) /* most bytes of a reply to LOOKS_MAX lookups */

/* The position of a list, as its cursor stores it. */
struct position {
    uint16_t node;
    uint64_t scan;
    /* The position is in the smallest step at `scan`, behind `after`, if that step still ends at
     * `end`. */
    bool cut;
    uint64_t end;
    uint32_t who; /* the process whose cursor `scan` is; 0: not known */
    uint32_t since_s; /* when the walk of its keys began, by its clock; 0: not known */
    uint8_t after[5]; /* the beginning of an id */
};

struct found {
    struct hapax_id id;
    bool grave; /* its tombstone's key was found */
};

struct list {
    struct hapax__redis *redis;
    struct hapax_op *op;
    uint32_t limit;
    struct position position;
    struct found *ids; /* of the step, in order, each once */
    size_t id_count;
    uint64_t end; /* where the next step begins; 0: there is none */
    uint32_t found; /* records of the step, behind op->count in op->records */
    struct hapax_id last; /* the last one looked up */
    bool looked;
};

enum step { STEP_DONE, STEP_TOO_MUCH, STEP_FAILED };

/* ---- the cursor ---------------------------------------------------------------------- */

static struct hapax_id cursor_of(const struct position *position)
{
    struct hapax_id id = {0};
    struct hapax__writer w = {id.bytes, sizeof(id.bytes)};

    hapax__put_number(&w, position->cut ? 2 : 1, 1);
    hapax__put_number(&w, position->node, 2);
    hapax__put_number(&w, position->scan, 8);
    hapax__put_number(&w, position->cut ? position->end : 0, 8);
    hapax__put_number(&w, position->who, 4);
    hapax__put_number(&w, position->since_s, 4);
    if (position->cut)
        hapax__put(&w, position->after, sizeof(position->after));
    return id;
}

/* False: not one of our cursors. */
static bool position_of(struct position *position, const struct hapax_id *cursor)
{
    struct hapax__reader r = {cursor->bytes, sizeof(cursor->bytes), false};
    unsigned kind = hapax__take_u8(&r);

    position->node = hapax__take_u16(&r);
    position->scan = hapax__take_u64(&r);
    position->cut = kind == 2;
    position->end = hapax__take_u64(&r);
    position->who = hapax__take_u32(&r);
    position->since_s = hapax__take_u32(&r);
    hapax__take_into(&r, position->after, sizeof(position->after));
    assert(!r.bad && r.left == 0);
    return kind <= 2 && (kind > 0 || (position->node == 0 && position->scan == 0));
}

/* ---- calls --------------------------------------------------------------------------- */

static enum hapax_error fail(struct list *list, enum hapax_error error, const char *text)
{
    list->op->verdict = HAPAX_NO_VERDICT;
    list->op->error = hapax_store_fail(&list->redis->base, error, "%s", text);
    return error;
}

/* No command here writes, so a command without a reply was not applied. */
static enum hapax_error run_calls(struct list *list, struct hapax__redis_call *calls, size_t n)
{
    struct hapax__redis *redis = list->redis;
    enum hapax_error error;

    redis->text[0] = '\0';
    error = hapax__redis_route_run(redis->route, calls, n, false, redis->text);
    for (size_t i = 0; i < n && error == HAPAX_ERR_NONE; i++)
        if (calls[i].reply->type == HAPAX__RESP_ERROR) {
            hapax__fail(redis->text, HAPAX_ERR_UNAVAILABLE, "redis refused it: %.160s",
                        calls[i].reply->str);
            error = HAPAX_ERR_UNAVAILABLE;
        }
    if (error == HAPAX_ERR_INDETERMINATE)
        error = HAPAX_ERR_UNAVAILABLE;
    return error == HAPAX_ERR_NONE ? error : fail(list, error, redis->text);
}

static enum hapax_error nonsense(struct list *list)
{
    return fail(list, HAPAX_ERR_UNAVAILABLE, "a reply makes no sense");
}

static bool read_u64(uint64_t *out, const struct hapax__resp *reply)
{
    if (reply->type != HAPAX__RESP_STRING || reply->len == 0 || reply->len > 20)
        return false;
    *out = 0;
    for (size_t i = 0; i < reply->len; i++) {
        uint64_t digit = (uint64_t)(reply->str[i] - '0');

        if (digit > 9 || *out > (UINT64_MAX - digit) / 10)
            return false;
        *out = *out * 10 + digit;
    }
    return true;
}

/* ---- a step -------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    return memcmp(&x->id, &y->id, sizeof(x->id));
}

/* Keeps each id once, in order. */
static void sort_ids(struct list *list)
{
    struct found *last = list->ids;
    size_t n = list->id_count;

    qsort(list->ids, n, sizeof(*list->ids), by_bytes);
    for (size_t i = 1; i < n; i++) {
        if (by_bytes(last, &list->ids[i]) != 0)
            *++last = list->ids[i];
        else
            last->grave |= list->ids[i].grave;
    }
    list->id_count = n == 0 ? 0 : (size_t)(last + 1 - list->ids);
}

/* The pattern of our keys: the prefix with its special characters escaped, then the digits of an
 * id. */
static void pattern_of(char *out, size_t size, const char *prefix)
{
    size_t len = 0;

    for (; *prefix; prefix++) {
        assert(len + 4 < size);
        if (strchr("*?[]\\^", *prefix))
            out[len++] = '\\';
        out[len++] = *prefix;
    }
    out[len++] = '*';
    out[len] = '\0';
}

static bool take_ids(struct list *list, const struct hapax__resp *keys)
{
    free(list->ids);
    list->id_count = 0;
    list->ids = malloc((keys->elements + 1) * sizeof(*list->ids));
    if (!list->ids)
        return false;
    for (size_t i = 0; i < keys->elements; i++) {
        const struct hapax__resp *key = keys->element[i];
        struct hapax_span span = {(const uint8_t *)key->str, key->len};
        struct found *found = &list->ids[list->id_count];

        if (key->type == HAPAX__RESP_STRING &&
            hapax__redis_id(&found->id, &found->grave, list->redis->uri.prefix, span))
            list->id_count++;
    }
    sort_ids(list);
    return true;
}

/* Fetches the ids of the step at the list's position. */
static enum hapax_error scan(struct list *list, unsigned count)
{
    char pattern[2 * HAPAX__REDIS_PREFIX_MAX + 8], cursor[24], number[16];
    struct hapax_span args[6] = {hapax_str("SCAN"), {NULL, 0},          hapax_str("MATCH"),
                                 {NULL, 0},         hapax_str("COUNT"), {NULL, 0}};
    struct hapax__redis_call call = {.args = args, .argc = 6, .node = list->position.node};
    enum hapax_error error;

    snprintf(cursor, sizeof(cursor), "%" PRIu64, list->position.scan);
    snprintf(number, sizeof(number), "%u", count);
    pattern_of(pattern, sizeof(pattern), list->redis->uri.prefix);
    args[1] = hapax_str(cursor);
    args[3] = hapax_str(pattern);
    args[5] = hapax_str(number);
    error = run_calls(list, &call, 1);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (call.reply->type != HAPAX__RESP_ARRAY || call.reply->elements != 2 ||
        call.reply->element[1]->type != HAPAX__RESP_ARRAY ||
        !read_u64(&list->end, call.reply->element[0]))
        return nonsense(list);
    if (!take_ids(list, call.reply->element[1]))
        return fail(list, HAPAX_ERR_NOMEM, "out of memory for a list");
    return HAPAX_ERR_NONE;
}

/* Whether the walk comes, or came, to the record's tombstone, too. */
static bool is_shown_there(const struct list *list, const struct hapax_record *record)
{
    return list->redis->uri.kind != HAPAX__REDIS_CLUSTER &&
           hapax__shown_until(record) < record->expires_us &&
           record->updated_us / US_PER_S < list->position.since_s;
}

/* Shows a record, if it is wanted and there is room. */
static enum step show(struct list *list, struct hapax_op *one, bool grave)
{
    struct hapax_op *op = list->op;

    if (one->now_us > op->now_us)
        op->now_us = one->now_us;
    if (one->verdict == HAPAX_FOUND && hapax__listed(&one->record, op, one->now_us) &&
        (grave || !is_shown_there(list, &one->record))) {
        if (op->count + list->found == list->limit)
            return STEP_TOO_MUCH;
        if (!hapax__store_keep(&list->redis->base, one)) {
            fail(list, HAPAX_ERR_NOMEM, "out of memory for a list");
            return STEP_FAILED;
        }
        op->records[op->count + list->found++] = one->record;
    }
    list->last = one->id;
    list->looked = true;
    return STEP_DONE;
}

/* Takes the answer of a lookup. A record that cannot be read is too much for any step but its
 * own. */
static enum step take_lookup(struct list *list, const struct found *found,
                             const struct hapax__resp *reply, size_t i)
{
    struct hapax_op one = {.kind = HAPAX_OP_LIST, .id = found->id};
    char text[HAPAX_TEXT_MAX];
    bool if_replicated;
    size_t need;

    if (hapax__redis_answer(&one, reply, i, &if_replicated, &need, text) != HAPAX__REDIS_ANSWERED) {
        nonsense(list);
        return STEP_FAILED;
    }
    if (one.error == HAPAX_ERR_NONE)
        return show(list, &one, found->grave);
    fail(list, one.error, text);
    return one.error == HAPAX_ERR_CORRUPT || one.error == HAPAX_ERR_UNSUPPORTED ? STEP_TOO_MUCH
                                                                                : STEP_FAILED;
}

/* Looks up n records: in one call; in a cluster in one call each. */
static enum step lookup(struct list *list, const struct found *ids, size_t n)
{
    struct hapax__redis *redis = list->redis;
    bool each = redis->uri.kind == HAPAX__REDIS_CLUSTER;
    const struct hapax__redis_args *ops[LOOKS_MAX];
    struct hapax_span spans[LOOKS_MAX * 6];
    struct hapax__redis_numbers numbers[LOOKS_MAX];
    struct hapax__redis_call calls[LOOKS_MAX];
    struct hapax_span *at = spans;
    size_t call_count = each ? n : 1;
    enum step step = STEP_DONE;

    assert(n > 0 && n <= LOOKS_MAX);
    for (size_t i = 0; i < n; i++) {
        hapax__redis_pack_lookup(&redis->packed[i], &ids[i].id, redis->uri.prefix,
                                 list->op->states);
        ops[i] = &redis->packed[i];
    }
    for (size_t c = 0; c < call_count; c++) {
        calls[c] =
            (struct hapax__redis_call){.script = &redis->machine,
                                       .args = at,
                                       .argc = hapax__redis_argc(ops + c, each ? 1 : n),
                                       .node = each ? 0 : list->position.node,
                                       .key = {redis->packed[c].key, redis->packed[c].key_len}};
        hapax__redis_fill(at, &numbers[c], ops + c, each ? 1 : n, LOOKS_SIZE, false,
                          redis->uri.kind == HAPAX__REDIS_CLUSTER);
        at += calls[c].argc;
    }
    assert(at <= spans + sizeof(spans) / sizeof(spans[0]));
    if (run_calls(list, calls, call_count) != HAPAX_ERR_NONE)
        return STEP_FAILED;
    for (size_t i = 0; i < n && step == STEP_DONE; i++)
        step = take_lookup(list, &ids[i], calls[each ? i : 0].reply, each ? 0 : i);
    return step;
}

/* Looks up the records of one step. TOO_MUCH: the records in list->found, up to list->last, are
 * good. */
static enum step take_step(struct list *list, unsigned count)
{
    bool behind = list->position.cut;
    enum step step = STEP_DONE;
    size_t from = 0;

    list->found = 0;
    list->looked = false;
    if (scan(list, count) != HAPAX_ERR_NONE)
        return STEP_FAILED;
    if (behind && list->end == list->position.end)
        while (from < list->id_count && memcmp(list->ids[from].id.bytes, list->position.after,
                                               sizeof(list->position.after)) <= 0)
            from++;
    while (from < list->id_count && step == STEP_DONE) {
        size_t n = list->id_count - from < LOOKS_MAX ? list->id_count - from : LOOKS_MAX;

        step = lookup(list, list->ids + from, n);
        from += n;
    }
    return step;
}

/* ---- who is asked -------------------------------------------------------------------- */

/* The beginning of the run_id of the process that serves the list's node, and the seconds of its
 * clock; 0: it has none. */
static uint32_t who_serves(struct list *list, uint32_t *now_s)
{
    struct hapax_span args[] = {hapax_str("INFO"), hapax_str("server")};
    struct hapax__redis_call call = {.args = args, .argc = 2, .node = list->position.node};
    struct hapax__redis *redis = list->redis;
    const char *at;
    char digits[9];

    *now_s = 0;
    if (hapax__redis_route_run(redis->route, &call, 1, false, redis->text) != HAPAX_ERR_NONE ||
        call.reply->type != HAPAX__RESP_STRING)
        return 0;
    at = strstr(call.reply->str, "server_time_usec:");
    if (at)
        *now_s = (uint32_t)(strtoull(at + strlen("server_time_usec:"), NULL, 10) / US_PER_S);
    at = strstr(call.reply->str, "run_id:");
    if (!at)
        return 0;
    snprintf(digits, sizeof(digits), "%s", at + strlen("run_id:"));
    return (uint32_t)strtoul(digits, NULL, 16);
}

/* Whether the process whose cursor the position has still serves the node. Otherwise the node is
 * walked anew. */
static bool same_server(struct list *list)
{
    uint32_t now_s, who = who_serves(list, &now_s);
    bool same = who == list->position.who;

    if (!same) {
        list->position.scan = 0;
        list->position.cut = false;
        list->position.since_s = now_s;
    }
    list->position.who = who;
    return same;
}

/* ---- LIST ---------------------------------------------------------------------------- */

/* Shows the smallest step as far as it fits. False: its first record cannot be read. */
static bool cut_step(struct list *list)
{
    if (!list->looked)
        return false;
    list->op->count += list->found;
    list->position.cut = true;
    list->position.end = list->end;
    memcpy(list->position.after, list->last.bytes, sizeof(list->position.after));
    return true;
}

static void go_on(struct list *list, size_t nodes)
{
    list->op->count += list->found;
    list->position.cut = false;
    list->position.scan = list->end;
    if (list->end != 0 || !same_server(list))
        return;
    list->position.node++;
    if (list->position.node < nodes)
        list->position.who = who_serves(list, &list->position.since_s);
}

/* Walks until the limit, the end, or the most that one op may walk. False: op->error says why
 * not. */
static bool take_steps(struct list *list, size_t nodes)
{
    int64_t deadline_us = hapax__monotonic_us() + list->redis->uri.timeout_ms * 1000;
    unsigned count = list->position.cut ? 1 : COUNT_MAX;

    for (unsigned i = 0; i < STEPS_MAX && list->position.node < nodes; i++) {
        enum step step = list->op->count < list->limit ? take_step(list, count) : STEP_TOO_MUCH;

        if (step == STEP_FAILED)
            return false;
        if (step == STEP_DONE) {
            go_on(list, nodes);
            count = list->op->count == 0 ? COUNT_MAX : count;
        } else if (list->op->count > 0) {
            break;
        } else if (count > 1) {
            count /= 2;
        } else {
            return cut_step(list);
        }
        if (hapax__monotonic_us() >= deadline_us)
            break;
    }
    return true;
}

/* Walks, and checks before and after that the same process answers: the cursor of one means
 * nothing to another. */
static bool walk(struct list *list, size_t nodes)
{
    if (list->position.node < nodes)
        (void)same_server(list);
    if (!take_steps(list, nodes))
        return false;
    if (list->position.node < nodes)
        (void)same_server(list);
    return true;
}

/* Drops the records that have expired at the time of the answer. */
static void drop_expired(struct hapax_op *op)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < op->count; i++)
        if (!hapax__expired(&op->records[i], op->now_us))
            op->records[kept++] = op->records[i];
    op->count = kept;
}

static enum hapax_error ask_time(struct list *list)
{
    struct hapax_span args[1] = {hapax_str("TIME")};
    struct hapax__redis_call call = {.args = args, .argc = 1};
    enum hapax_error error = run_calls(list, &call, 1);
    uint64_t seconds, us;

    if (error != HAPAX_ERR_NONE)
        return error;
    if (call.reply->type != HAPAX__RESP_ARRAY || call.reply->elements != 2 ||
        !read_u64(&seconds, call.reply->element[0]) || !read_u64(&us, call.reply->element[1]) ||
        seconds > UINT32_MAX * UINT64_C(8) || us > 999999)
        return nonsense(list);
    list->op->now_us = (int64_t)(seconds * 1000000 + us);
    return HAPAX_ERR_NONE;
}

static enum hapax_error list_all(struct list *list)
{
    struct hapax_op *op = list->op;
    enum hapax_error error = HAPAX_ERR_NONE;
    size_t nodes;

    if (!position_of(&list->position, &op->cursor))
        return fail(list, HAPAX_ERR_INVALID, "the cursor is not one of this store");
    op->records = hapax_store_memory(&list->redis->base, list->limit * sizeof(*op->records));
    if (!op->records)
        return fail(list, HAPAX_ERR_NOMEM, "out of memory for a list");
    nodes = hapax__redis_route_nodes(list->redis->route, &error, list->redis->text);
    if (nodes == 0)
        return fail(list, error, list->redis->text);
    op->now_us = 0;
    if (!walk(list, nodes))
        return op->error;
    if (op->now_us == 0 && ask_time(list) != HAPAX_ERR_NONE)
        return op->error;
    drop_expired(op);
    op->more = list->position.node < nodes;
    if (op->more)
        op->next_cursor = cursor_of(&list->position);
    op->verdict = HAPAX_FOUND;
    op->error = HAPAX_ERR_NONE;
    list->redis->base.text[0] = '\0'; /* a step that was taken again may have set it */
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__redis_list(struct hapax__redis *redis, struct hapax_op *op)
{
    struct list list = {
        .redis = redis, .op = op, .limit = op->limit > 0 ? op->limit : HAPAX_LIST_MAX};
    enum hapax_error error = list_all(&list);

    free(list.ids);
    return error;
}

/* ---- PURGE --------------------------------------------------------------------------- */

enum hapax_error hapax__redis_purge(struct hapax__redis *redis, struct hapax_op *op)
{
    struct list list = {.redis = redis, .op = op};
    enum hapax_error error = ask_time(&list);

    if (error != HAPAX_ERR_NONE)
        return error;
    op->verdict = HAPAX_OK;
    op->error = HAPAX_ERR_NONE;
    return HAPAX_ERR_NONE;
}
