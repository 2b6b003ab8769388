/* SPDX-License-Identifier: Apache-2.0
 *
 * A record, printed. A field that has no value is left out for people and is null in JSON, so that
 * a script can rely on every name.
 */
#include "report.h"

#include "print.h"

#include "base/utf8.h"
#include "core/machine.h"
#include "core/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH       14
#define SCOPE_WIDTH      16u
#define DAMAGE_LINES_MAX 20u

/* ---- for people ---------------------------------------------------------------------- */

static void put_name(const char *name)
{
    printf("%-*s", NAME_WIDTH, name);
}

static void put_line(const char *name, const char *value)
{
    put_name(name);
    puts(value);
}

static void put_moment(const char *name, int64_t us, int64_t now_us)
{
    char at[PRINT_TIME_MAX];
    char age[PRINT_AGE_MAX];

    print_time(at, us);
    print_age(age, us > now_us ? us - now_us : now_us - us);
    put_name(name);
    printf(us > now_us ? "%s (in %s)\n" : "%s (%s ago)\n", at, age);
}

static void put_digest(const char *name, const uint8_t bytes[32])
{
    char hex[PRINT_HEX_MAX];

    print_hex(hex, bytes);
    put_line(name, hex);
}

static void put_lease(const struct hapax_record *record, int64_t now_us)
{
    char age[PRINT_AGE_MAX];
    bool live = record->lease_until_us > now_us;

    if (record->state != HAPAX_STATE_STARTED)
        return;
    put_name("lease");
    if (record->lease_until_us == 0) { /* of a claim that was copied */
        puts("over");
        return;
    }
    print_age(age, live ? record->lease_until_us - now_us : now_us - record->lease_until_us);
    printf(live ? "live for another %s\n" : "over since %s\n", age);
}

static void put_marks(const struct hapax_record *record)
{
    if (record->stale)
        put_line("stale", "yes: an attempt died, and nobody knows what it did");
    if (record->hold && record->state != HAPAX_STATE_COMPLETED)
        put_line("hold", "yes: where an attempt dies, an operator decides");
    if (record->reruns)
        put_line("reruns", "yes: a repeat runs again once it has completed");
    if (record->state == HAPAX_STATE_FAILED && record->resolved_us != record->updated_us)
        put_line("ran", record->ran ? "yes: the last attempt may have had its effect"
                                    : "no: the last attempt surely had no effect");
}

static bool is_text(struct hapax_span bytes)
{
    return hapax__is_utf8(bytes) && !(bytes.len > 0 && memchr(bytes.ptr, '\0', bytes.len));
}

/* Takes the first line off. False: there is none. */
static bool next_header(struct hapax_span *line, struct hapax_span *headers)
{
    const uint8_t *end = headers->len > 0 ? memmem(headers->ptr, headers->len, "\r\n", 2) : NULL;
    size_t len = end ? (size_t)(end - headers->ptr) : headers->len;

    if (headers->len == 0)
        return false;
    *line = (struct hapax_span){headers->ptr, len};
    len += end ? 2 : 0;
    *headers = (struct hapax_span){headers->ptr + len, headers->len - len};
    return true;
}

static void put_headers(struct hapax_span headers)
{
    struct hapax_span line;

    for (const char *name = "headers"; next_header(&line, &headers); name = "") {
        put_name(name);
        print_text(stdout, line, false, 0);
        putchar('\n');
    }
}

static void put_outcome(const struct hapax_record *record)
{
    const struct hapax_outcome *outcome = &record->outcome;
    struct hapax_span headers = outcome->headers;
    char trace[HAPAX_TRACE_MAX];

    if (record->state != HAPAX_STATE_COMPLETED && outcome->status == 0 && outcome->body.len == 0)
        return;
    put_name("status");
    printf("%d\n", outcome->status);
    hapax__trace_take(trace, &headers);
    if (trace[0])
        put_line("trace", trace);
    put_headers(headers);
    put_name("body");
    if (!outcome->body_kept)
        puts("not kept: it was over the limit, or a stream");
    else if (outcome->body.len == 0)
        puts("empty");
    else if (!is_text(outcome->body))
        printf("%zu bytes, not text; --json gives them in base64\n", outcome->body.len);
    else {
        printf("%zu bytes:\n%*s", outcome->body.len, NAME_WIDTH, "");
        print_text(stdout, outcome->body, true, NAME_WIDTH);
        putchar('\n');
    }
}

static void put_span(const char *name, struct hapax_span text)
{
    put_name(name);
    print_text(stdout, text, false, 0);
    putchar('\n');
}

static void put_resolved(const struct hapax_record *record, int64_t now_us)
{
    put_moment("resolved", record->resolved_us, now_us);
    put_span("resolved by", record->resolved_by);
    if (record->replaced_state == HAPAX_STATE_ABSENT)
        return;
    put_name("replaced");
    printf("%s", hapax_state_name(record->replaced_state));
    if (record->replaced_status > 0)
        printf(", status %d", record->replaced_status);
    putchar('\n');
}

/* The word for a state. A tombstone is `completed` to the machine, and `expired` to people. */
static const char *state_word(const struct hapax_record *record, int64_t now_us)
{
    return hapax__tombstone(record, now_us) ? "expired" : hapax_state_name(record->state);
}

void report_repeat(char out[REPORT_REPEAT_MAX], const struct hapax_record *record, int64_t now_us)
{
    const char *text = "gets the same answer";
    bool over = record->lease_until_us <= now_us;

    switch (record->state) {
    case HAPAX_STATE_ABSENT:
        text = "runs it, as the first";
        break;
    case HAPAX_STATE_STARTED:
        text = !over          ? "waits for the attempt that runs, or is told that it is in flight"
               : record->hold ? "is told that the outcome is unknown, since the attempt died"
                              : "runs it again, since the attempt died";
        break;
    case HAPAX_STATE_COMPLETED:
        if (hapax__tombstone(record, now_us))
            text = "is told that it was done, longer ago than its answer was kept";
        else if (!record->outcome.body_kept)
            text = "is told that it is done, and that the answer was not kept";
        break;
    case HAPAX_STATE_FAILED:
        text = record->stale && record->hold ? "is told that the outcome is unknown"
                                             : "runs it again, if attempts are left";
        break;
    case HAPAX_STATE_UNKNOWN:
        text = "is told that the outcome is unknown, until it is resolved";
        break;
    }
    if (record->state == HAPAX_STATE_COMPLETED && record->outcome.body_kept)
        (void)snprintf(out, REPORT_REPEAT_MAX, "%s, with status %d", text, record->outcome.status);
    else
        (void)snprintf(out, REPORT_REPEAT_MAX, "%s", text);
}

void report_record(const struct hapax_record *record, int64_t now_us)
{
    char repeat[REPORT_REPEAT_MAX];

    put_digest("id", record->id.bytes);
    if (record->what.len > 0)
        put_span("what", record->what);
    put_span("scope", record->scope);
    if (hapax__owned(&record->owner))
        put_digest("owner", record->owner.bytes);
    put_line("state", state_word(record, now_us));
    put_lease(record, now_us);
    put_marks(record);
    put_name("attempt");
    printf("%" PRIu32 "\n", record->attempt);
    put_name("fence");
    printf("%" PRIu64 "\n", record->fence);
    put_moment("created", record->created_us, now_us);
    put_moment("updated", record->updated_us, now_us);
    if (record->expires_us > 0)
        put_moment("expires", record->expires_us, now_us);
    else
        put_line("expires", "never");
    if (record->resolved_us > 0)
        put_resolved(record, now_us);
    report_repeat(repeat, record, now_us);
    put_line("a repeat", repeat);
    put_digest("fingerprint", record->fingerprint.bytes);
    put_digest("caller", record->caller.bytes);
    put_outcome(record);
}

/* ---- a table ------------------------------------------------------------------------- */

void report_row_head(void)
{
    printf("%-64s  %-9s  %7s  %-7s  %-7s  %-16s  %s\n", "ID", "STATE", "ATTEMPT", "AGE", "LEASE",
           "SCOPE", "WHAT");
}

void report_row(const struct hapax_record *record, int64_t now_us)
{
    char id[PRINT_HEX_MAX];
    char age[PRINT_AGE_MAX];
    char lease[PRINT_AGE_MAX] = "-";

    print_hex(id, record->id.bytes);
    print_age(age, now_us - record->updated_us);
    if (record->state == HAPAX_STATE_STARTED && record->lease_until_us > now_us)
        print_age(lease, record->lease_until_us - now_us);
    else if (record->state == HAPAX_STATE_STARTED)
        (void)snprintf(lease, sizeof(lease), "over");
    printf("%-64s  %-9s  %7" PRIu32 "  %-7s  %-7s  ", id, state_word(record, now_us),
           record->attempt, age, lease);
    print_text(stdout, record->scope, false, 0);
    if (record->what.len > 0) {
        for (size_t i = record->scope.len; i < SCOPE_WIDTH; i++)
            putchar(' ');
        (void)fputs("  ", stdout);
        print_text(stdout, record->what, false, 0);
    }
    putchar('\n');
}

/* The name comes last: it may be long, and it may be anybody's. */
void report_step_head(void)
{
    printf("\n%-9s  %7s  %6s  %-7s  %-7s  %s\n", "STATE", "ATTEMPT", "STATUS", "CREATED", "UPDATED",
           "STEP");
}

void report_step(const struct hapax_record *record, struct hapax_span name, int64_t now_us)
{
    char created[PRINT_AGE_MAX], updated[PRINT_AGE_MAX];
    char status[16] = "-";

    print_age(created, now_us - record->created_us);
    print_age(updated, now_us - record->updated_us);
    if (record->state == HAPAX_STATE_COMPLETED || record->outcome.status > 0)
        (void)snprintf(status, sizeof(status), "%d", record->outcome.status);
    printf("%-9s  %7" PRIu32 "  %6s  %-7s  %-7s  ", hapax_state_name(record->state),
           record->attempt, status, created, updated);
    print_text(stdout, name, false, 0);
    putchar('\n');
}

/* ---- JSON ---------------------------------------------------------------------------- */

static void json_moment(struct json *json, const char *name, int64_t us)
{
    if (us > 0)
        json_number(json, name, us);
    else
        json_null(json, name);
}

static void json_headers(struct json *json, struct hapax_span headers)
{
    struct hapax_span line;

    json_array_begin(json, "headers");
    while (next_header(&line, &headers))
        json_item(json, line);
    json_array_end(json);
}

/* The first bytes of a text, as many as fit, with no character cut in two. */
static struct hapax_span cut(struct hapax_span text, int64_t max)
{
    if (max >= (int64_t)text.len)
        return text;
    text.len = (size_t)max;
    for (size_t back = 0; back < 4 && back < text.len; back++)
        if (hapax__is_utf8((struct hapax_span){text.ptr, text.len - back}))
            return (struct hapax_span){text.ptr, text.len - back};
    return text;
}

static void json_outcome(struct json *json, const struct hapax_record *record, int64_t body_max)
{
    struct hapax_span headers = record->outcome.headers;
    char trace[HAPAX_TRACE_MAX];

    hapax__trace_take(trace, &headers);
    json_number(json, "status", record->outcome.status);
    json_headers(json, headers);
    json_bool(json, "body_kept", record->outcome.body_kept);
    if (body_max == REPORT_LISTED)
        return;
    json_number(json, "body_size", (int64_t)record->outcome.body.len);
    json_bytes(json, "body", cut(record->outcome.body, body_max));
    if (trace[0])
        json_text(json, "trace", trace);
    else
        json_null(json, "trace");
}

void report_members(struct json *json, const struct hapax_record *record, int64_t body_max,
                    int64_t now_us)
{
    json_hex(json, "id", record->id.bytes);
    json_bytes(json, "what", record->what);
    json_bytes(json, "scope", record->scope);
    if (hapax__owned(&record->owner))
        json_hex(json, "owner", record->owner.bytes);
    else
        json_null(json, "owner");
    json_text(json, "state", state_word(record, now_us));
    json_number(json, "attempt", record->attempt);
    json_unsigned(json, "fence", record->fence);
    json_bool(json, "stale", record->stale);
    json_bool(json, "hold", record->hold);
    json_bool(json, "ran", record->ran);
    json_bool(json, "reruns", record->reruns);
    json_hex(json, "fingerprint", record->fingerprint.bytes);
    json_hex(json, "caller", record->caller.bytes);
    json_number(json, "created_us", record->created_us);
    json_number(json, "updated_us", record->updated_us);
    json_moment(json, "lease_until_us", record->lease_until_us);
    json_moment(json, "expires_us", record->expires_us);
    json_outcome(json, record, body_max);
    json_moment(json, "resolved_us", record->resolved_us);
    if (record->resolved_us > 0)
        json_bytes(json, "resolved_by", record->resolved_by);
    else
        json_null(json, "resolved_by");
    if (record->replaced_state != HAPAX_STATE_ABSENT) {
        json_text(json, "replaced_state", hapax_state_name(record->replaced_state));
        json_number(json, "replaced_status", record->replaced_status);
    } else {
        json_null(json, "replaced_state");
        json_null(json, "replaced_status");
    }
}

void report_damage(struct report_damage *damage, const char *command, const struct hapax_op *op)
{
    char from[PRINT_HEX_MAX], to[PRINT_HEX_MAX];

    if (!op->damaged ||
        (damage->places > 0 && memcmp(&damage->last, &op->damaged_to, sizeof(damage->last)) == 0))
        return;
    damage->last = op->damaged_to;
    if (damage->places++ >= DAMAGE_LINES_MAX)
        return;
    print_hex(from, op->damaged_from.bytes);
    print_hex(to, op->damaged_to.bytes);
    if (memcmp(&op->damaged_from, &op->damaged_to, sizeof(op->damaged_to)) == 0)
        (void)fprintf(stderr, "hapax %s: passed over record %s: it is damaged\n", command, to);
    else
        (void)fprintf(stderr,
                      "hapax %s: passed over all records behind %s up to %s: the file is damaged "
                      "there\n",
                      command, from, to);
}
