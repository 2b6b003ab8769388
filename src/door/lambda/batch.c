/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches: SQS, Kinesis and DynamoDB streams. Each record is an operation of its own. The function
 * gets the records that are to run. Records that are not done are named in the response, so that
 * the source brings them again.
 *
 * The invariants: a record that is not done never counts as done. The order of a source holds: in a
 * FIFO group or a stream, nothing runs behind a record that has to come again. The function gets
 * the event with records cut out of its text, and nothing else changed. The function's own report
 * reaches the source byte for byte.
 */
#include "invocation.h"
#include "json/raw.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* ---- records --------------------------------------------------------------------------- */

static bool is_stream(const struct hapax__invocation *invocation)
{
    return invocation->kind != HAPAX_LAMBDA_SQS;
}

static const char *item_of(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_SQS       ? "messageId"
           : kind == HAPAX_LAMBDA_KINESIS ? "kinesis.sequenceNumber"
                                          : "dynamodb.SequenceNumber";
}

/* Only FIFO queues have an order in a group; standard queues may have groups, too. */
static void read_group(struct hapax__unit *unit)
{
    static const char fifo[] = ".fifo\"";
    struct hapax_span arn;

    if (hapax__raw_member(&arn, unit->json, "eventSourceARN") && arn.len > strlen(fifo) &&
        memcmp(arn.ptr + arn.len - strlen(fifo), fifo, strlen(fifo)) == 0)
        (void)hapax__raw_member(&unit->group, unit->json, "attributes.MessageGroupId");
}

bool hapax__batch_units(struct hapax__invocation *invocation)
{
    struct hapax_span records, name, record;
    struct hapax__raw_walk walk;
    size_t n = 0;

    (void)hapax__raw_member(&records, invocation->root, "Records");
    hapax__raw_begin(&walk, records);
    while (hapax__raw_next(&walk, &name, &record))
        n++;
    invocation->units = calloc(n > 0 ? n : 1, sizeof(*invocation->units));
    if (!invocation->units)
        return false;
    hapax__raw_begin(&walk, records);
    for (size_t i = 0; i < n; i++) {
        struct hapax__unit *unit = &invocation->units[i];

        (void)hapax__raw_next(&walk, &name, &unit->json);
        (void)hapax__raw_member(&unit->item, unit->json, item_of(invocation->kind));
        if (!is_stream(invocation))
            read_group(unit);
    }
    invocation->unit_count = n;
    return true;
}

/* ---- order ----------------------------------------------------------------------------- */

static bool same_operation(const struct hapax__unit *a, const struct hapax__unit *b)
{
    return hapax__same(a->asked.request.owner, b->asked.request.owner) &&
           hapax__same(a->asked.request.key, b->asked.request.key) &&
           memcmp(&a->asked.request.fingerprint, &b->asked.request.fingerprint,
                  sizeof(a->asked.request.fingerprint)) == 0;
}

/* Unit i may be in flight because a record of this batch runs: then it is a duplicate of that. */
static void find_original(struct hapax__invocation *invocation, size_t i)
{
    struct hapax__unit *unit = &invocation->units[i];

    if (unit->state != HAPAX__UNIT_BACK || unit->answer.kind != HAPAX_ANSWER_IN_FLIGHT)
        return;
    for (size_t k = 0; k < i; k++) {
        struct hapax__unit *other = &invocation->units[k];

        if (other->state == HAPAX__UNIT_RUN && same_operation(unit, other)) {
            unit->state = HAPAX__UNIT_DUPLICATE;
            unit->original = k;
            return;
        }
    }
}

bool hapax__batch_is_behind(const struct hapax__invocation *invocation, size_t i, size_t k)
{
    const struct hapax_span *group = &invocation->units[i].group;

    return is_stream(invocation) ||
           (group->len > 0 && hapax__same(*group, invocation->units[k].group));
}

/* Unit i has to come again: the records behind it must not run. */
static void block_behind(struct hapax__invocation *invocation, size_t i)
{
    for (size_t k = i + 1; k < invocation->unit_count; k++) {
        struct hapax__unit *unit = &invocation->units[k];

        if (unit->state == HAPAX__UNIT_RUN && hapax__batch_is_behind(invocation, i, k))
            unit->blocked = true;
    }
}

void hapax__batch_order(struct hapax__invocation *invocation)
{
    bool ordered = is_stream(invocation);

    for (size_t i = 0; i < invocation->unit_count; i++) {
        find_original(invocation, i);
        ordered = ordered || invocation->units[i].group.len > 0;
    }
    for (size_t i = 0; ordered && i < invocation->unit_count; i++) {
        struct hapax__unit *unit = &invocation->units[i];

        if (unit->state == HAPAX__UNIT_DUPLICATE && invocation->units[unit->original].blocked)
            unit->state = HAPAX__UNIT_BACK;
        if (unit->state == HAPAX__UNIT_BACK) {
            block_behind(invocation, i);
            if (is_stream(invocation))
                break;
        }
    }
    /* A duplicate stays one only if its original runs. */
    for (size_t i = 0; i < invocation->unit_count; i++) {
        struct hapax__unit *unit = &invocation->units[i];

        if (unit->state == HAPAX__UNIT_DUPLICATE && invocation->units[unit->original].blocked)
            unit->state = HAPAX__UNIT_BACK;
    }
}

/* ---- the event ------------------------------------------------------------------------- */

static bool is_run(const struct hapax__unit *unit)
{
    return unit->state == HAPAX__UNIT_RUN;
}

bool hapax__batch_cut(struct hapax__invocation *invocation)
{
    const struct hapax__unit *units = invocation->units;
    size_t n = invocation->unit_count, kept = 0;
    const uint8_t *end;
    bool more = false;
    FILE *out;

    for (size_t i = 0; i < n; i++)
        kept += is_run(&units[i]);
    if (kept == n)
        return true;
    out = open_memstream(&invocation->cut, &invocation->cut_len);
    if (!out)
        return false;
    (void)fwrite(invocation->text.ptr, 1, (size_t)(units[0].json.ptr - invocation->text.ptr), out);
    for (size_t i = 0; i < n; i++) {
        if (!is_run(&units[i]))
            continue;
        (void)fputs(more ? "," : "", out);
        (void)fwrite(units[i].json.ptr, 1, units[i].json.len, out);
        more = true;
    }
    end = units[n - 1].json.ptr + units[n - 1].json.len;
    (void)fwrite(end, 1, (size_t)(invocation->text.ptr + invocation->text.len - end), out);
    return fclose(out) == 0;
}

/* ---- the function's report ----------------------------------------------------------------- */

/* A function may spell an identifier with escapes: then the bytes are compared. */
static bool same_item(struct hapax_span ours, struct hapax_span theirs)
{
    uint8_t a[512], b[512];
    size_t len;

    if (hapax__same(ours, theirs))
        return true;
    if (!memchr(theirs.ptr, '\\', theirs.len) || ours.len > sizeof(a) || theirs.len > sizeof(b))
        return false;
    len = hapax__raw_unescape(a, ours);
    return hapax__raw_unescape(b, theirs) == len && memcmp(a, b, len) == 0;
}

/* Marks the records of this identifier. False: there is none. */
static bool mark(struct hapax__report *report, struct hapax__invocation *invocation,
                 struct hapax_span item)
{
    bool found = false;

    for (size_t i = 0; i < invocation->unit_count; i++) {
        if (!same_item(invocation->units[i].item, item))
            continue;
        invocation->units[i].reported = found = true;
        if (i < report->first)
            report->first = i;
    }
    return found;
}

/* Reads a report as the event sources do: without a list all succeeded; an item that names no
 * record fails the batch. */
void hapax__batch_report(struct hapax__report *report, struct hapax__invocation *invocation,
                         struct hapax_span text)
{
    struct hapax_span root, name, element, item;
    struct hapax__raw_walk walk;

    *report = (struct hapax__report){.first = SIZE_MAX};
    for (size_t i = 0; i < invocation->unit_count; i++)
        invocation->units[i].reported = false;
    if (text.len == 0)
        return;
    if (!hapax__raw_check(&root, text)) {
        report->all = true;
        return;
    }
    if (!hapax__raw_member(&report->list, root, "batchItemFailures"))
        return;
    if (!hapax__raw_is_array(report->list)) {
        report->list.len = 0;
        return;
    }
    hapax__raw_begin(&walk, report->list);
    while (hapax__raw_next(&walk, &name, &element))
        if (!hapax__raw_member(&item, element, "itemIdentifier") || !hapax__raw_is_string(item) ||
            !mark(report, invocation, item))
            report->all = true;
}

/* A stream comes again from the first record that is named on. */
bool hapax__batch_reports(const struct hapax__report *report,
                          const struct hapax__invocation *invocation, size_t unit)
{
    return is_stream(invocation) ? unit >= report->first : invocation->units[unit].reported;
}

/* ---- the response ---------------------------------------------------------------------- */

static void put_item(FILE *out, struct hapax_span item, bool more)
{
    (void)fputs(more ? ",{\"itemIdentifier\":" : "{\"itemIdentifier\":", out);
    (void)fwrite(item.ptr, 1, item.len, out);
    (void)fputc('}', out);
}

/* Writes the records that are to come again and are not in the function's own list. */
static size_t put_items(FILE *out, const struct hapax__invocation *invocation)
{
    size_t n = 0;

    for (size_t i = 0; i < invocation->unit_count; i++) {
        const struct hapax__unit *unit = &invocation->units[i];

        if (unit->state != HAPAX__UNIT_BACK || unit->reported)
            continue;
        put_item(out, unit->item, n > 0);
        n++;
    }
    return n;
}

static bool put_report(struct hapax__lambda_reply *reply,
                       const struct hapax__invocation *invocation,
                       const struct hapax__report *report, struct hapax_span text)
{
    struct hapax_span name, element, list = report->list;
    struct hapax__raw_walk walk;
    char *items = NULL;
    size_t len = 0, ours;
    FILE *out = open_memstream(&items, &len);
    bool theirs, good;

    if (!out)
        return false;
    ours = put_items(out, invocation);
    if (fclose(out) != 0) {
        free(items);
        return false;
    }
    if (ours == 0 && text.ptr) {
        free(items);
        return hapax__reply_text(reply, text);
    }
    hapax__raw_begin(&walk, list);
    theirs = hapax__raw_next(&walk, &name, &element);
    memset(reply, 0, sizeof(*reply));
    out = open_memstream(&reply->text, &reply->len);
    good = out != NULL;
    if (good && list.len > 0) {
        (void)fwrite(text.ptr, 1, (size_t)(list.ptr + 1 - text.ptr), out);
        (void)fprintf(out, "%s%s", items, theirs ? "," : "");
        (void)fwrite(list.ptr + 1, 1, (size_t)(text.ptr + text.len - list.ptr - 1), out);
    } else if (good) {
        (void)fprintf(out, "{\"batchItemFailures\":[%s]}", items);
    }
    free(items);
    if (!good)
        return false;
    good = !ferror(out);
    return fclose(out) == 0 && good;
}

/* Without reports, one answer is for the whole batch. */
static bool reply_without_report(struct hapax__lambda_reply *reply,
                                 const struct hapax__invocation *invocation, struct hapax_span text)
{
    for (size_t i = 0; i < invocation->unit_count; i++) {
        const struct hapax__unit *unit = &invocation->units[i];

        if (unit->state != HAPAX__UNIT_BACK)
            continue;
        if (unit->answer.cls != 0 || unit->answer.kind == HAPAX_ANSWER_REPLAY ||
            unit->answer.kind == HAPAX_ANSWER_BYPASS)
            return hapax__reply_error(reply, "RecordsFailed", "Records of the batch failed", NULL);
        return hapax__reply_answer(reply, HAPAX_LAMBDA_PLAIN, invocation->root, &unit->answer,
                                   unit->asked.why, NULL);
    }
    return hapax__reply_text(reply, text.ptr ? text : hapax_str("null"));
}

bool hapax__batch_reply(struct hapax__lambda_reply *reply, struct hapax__invocation *invocation,
                        struct hapax_span text)
{
    struct hapax__report report = {.all = false};

    if (!invocation->function->lambda->batch_report)
        return reply_without_report(reply, invocation, text);
    hapax__batch_report(&report, invocation, text);
    /* A report that the source does not understand fails the whole batch. */
    return report.all ? hapax__reply_text(reply, text)
                      : put_report(reply, invocation, &report, text);
}
