/* SPDX-License-Identifier: Apache-2.0
 *
 * A store has no counts: the unfinished operations are listed and counted, so there is a limit to
 * how many, and to how long.
 */
#include "totals.h"

#include "base/clock.h"
#include "base/time.h"
#include "print.h"
#include "report.h"

#include <inttypes.h>
#include <string.h>

#define WALK_MAX 10000
#define WALK_US  US_PER_S

static const struct {
    enum hapax_state state;
    bool over;
    const char *name;
} kinds[TOTALS_KINDS] = {[TOTALS_UNKNOWN] = {HAPAX_STATE_UNKNOWN, false, "unknown"},
                         [TOTALS_OVER] = {HAPAX_STATE_STARTED, true, "lease over"},
                         [TOTALS_STARTED] = {HAPAX_STATE_STARTED, false, "started"},
                         [TOTALS_FAILED] = {HAPAX_STATE_FAILED, false, "failed"}};

static struct hapax_span keep(uint8_t *to, struct hapax_span text)
{
    memcpy(to, text.ptr ? text.ptr : to, text.len);
    return (struct hapax_span){to, text.len};
}

/* Copies a record with its texts into a place. */
static void keep_record(struct totals_oldest *to, const struct hapax_record *record)
{
    to->record = *record;
    to->record.scope = keep(to->scope, record->scope);
    to->record.what = keep(to->what, record->what);
    to->record.resolved_by = keep(to->by, record->resolved_by);
}

/* Puts a record among the oldest, if it is one of them. */
static void take_oldest(struct totals *totals, const struct hapax_record *record)
{
    uint32_t at = totals->oldest_n;

    while (at > 0 && totals->oldest[at - 1].record.updated_us > record->updated_us)
        at--;
    if (at == TOTALS_OLDEST_MAX)
        return;
    if (totals->oldest_n < TOTALS_OLDEST_MAX)
        totals->oldest_n++;
    for (uint32_t i = totals->oldest_n - 1; i > at; i--)
        keep_record(&totals->oldest[i], &totals->oldest[i - 1].record);
    keep_record(&totals->oldest[at], record);
}

static void take(struct totals *totals, const struct hapax_record *record)
{
    bool over = record->state == HAPAX_STATE_STARTED && record->lease_until_us <= totals->now_us;
    int64_t age_us = hapax__most(totals->now_us - record->updated_us, 0);

    for (int kind = 0; kind < TOTALS_KINDS; kind++)
        if (kinds[kind].state == record->state && kinds[kind].over == over) {
            totals->kinds[kind].count++;
            totals->kinds[kind].oldest_us = hapax__most(totals->kinds[kind].oldest_us, age_us);
        }
    if (over || record->state == HAPAX_STATE_UNKNOWN)
        take_oldest(totals, record);
}

enum hapax_error totals_read(struct totals *out, struct hapax_store *store)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN};
    int64_t until_us = hapax__monotonic_us() + WALK_US;
    bool damaged = false;
    int64_t n = 0;

    *out = (struct totals){0};
    do {
        enum hapax_error error = hapax_store_run(store, &op, 1);

        if (error != HAPAX_ERR_NONE)
            return error;
        out->now_us = op.now_us;
        for (uint32_t i = 0; i < op.count; i++)
            if (!cli_is_own(&op.records[i]))
                take(out, &op.records[i]);
        n += op.count;
        damaged = damaged || op.damaged;
        op.cursor = op.next_cursor;
    } while (op.more && n < WALK_MAX && hapax__monotonic_us() < until_us);
    out->more = op.more || damaged;
    return HAPAX_ERR_NONE;
}

void totals_members(struct json *json, const struct totals *totals)
{
    json_array_begin(json, "totals");
    for (int kind = 0; kind < TOTALS_KINDS; kind++) {
        json_object_begin(json);
        json_text(json, "name", kinds[kind].name);
        json_text(json, "state", hapax_state_name(kinds[kind].state));
        json_number(json, "count", totals->kinds[kind].count);
        json_number(json, "oldest_us", totals->kinds[kind].oldest_us);
        json_object_end(json);
    }
    json_array_end(json);
    json_array_begin(json, "oldest");
    for (uint32_t i = 0; i < totals->oldest_n; i++) {
        json_object_begin(json);
        report_members(json, &totals->oldest[i].record, REPORT_LISTED, totals->now_us);
        json_object_end(json);
    }
    json_array_end(json);
    json_bool(json, "more", totals->more);
    json_number(json, "now_us", totals->now_us);
}

void totals_table(const struct totals *totals)
{
    char age[PRINT_AGE_MAX];

    printf("%-12s  %9s  %s\n", "STATE", "COUNT", "OLDEST");
    for (int kind = 0; kind < TOTALS_KINDS; kind++) {
        print_age(age, totals->kinds[kind].oldest_us);
        printf("%-12s  %8" PRId64 "%s  %s\n", kinds[kind].name, totals->kinds[kind].count,
               totals->more ? "+" : " ", totals->kinds[kind].count > 0 ? age : "-");
    }
}

enum cli_exit totals_list(const struct cli_args *args, struct hapax_store *store)
{
    struct totals totals;
    enum hapax_error error = totals_read(&totals, store);
    struct json json;

    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, hapax_store_text(store));
    if (args->json) {
        json_begin_at(&json, args->out);
        totals_members(&json, &totals);
        json_end(&json);
    } else {
        totals_table(&totals);
    }
    return CLI_DONE;
}
