/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax check on DynamoDB. A setting of the table that can lose or repeat an answered operation is
 * a danger; a setting that only costs money or time is advice. What the credentials may not read is
 * reported as unknown. Whether they may write is found out by writes whose condition cannot hold.
 */
#include "dynamodb.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DATE_US    US_PER_S /* what a Date header leaves out */
#define MEASURE_US (60 * US_PER_S)

struct checking {
    struct hapax__ddb *ddb;
    struct hapax__aws_call call;
    struct hapax__json_out out;
    int64_t deadline_us;
    hapax_say *say;
    void *arg;
};

#define tell(c, ...) hapax__tell((c)->say, (c)->arg, __VA_ARGS__)

bool hapax__ddb_keyed(struct hapax_span reply)
{
    static const char *const keys[] = {"id", "part"}, *const kinds[] = {"HASH", "RANGE"};
    struct hapax__raw_walk walk;
    struct hapax_span value, name, element, bytes;
    size_t n = 0, of_bytes = 0;

    if (!hapax__ddb_find(&value, reply, "Table.KeySchema"))
        return false;
    hapax__raw_begin(&walk, value);
    for (; hapax__raw_next(&walk, &name, &element); n++)
        if (n >= 2 || !hapax__raw_member(&value, element, "AttributeName") ||
            !hapax__raw_says(value, keys[n]) || !hapax__raw_member(&value, element, "KeyType") ||
            !hapax__raw_says(value, kinds[n]))
            return false;
    if (!hapax__ddb_find(&value, reply, "Table.AttributeDefinitions"))
        return false;
    hapax__raw_begin(&walk, value);
    while (hapax__raw_next(&walk, &name, &element))
        if (hapax__raw_member(&value, element, "AttributeName") &&
            (hapax__raw_says(value, "id") || hapax__raw_says(value, "part")))
            of_bytes +=
                hapax__raw_member(&bytes, element, "AttributeType") && hapax__raw_says(bytes, "B");
    return n == 2 && of_bytes == 2;
}

static bool ask(struct checking *c, const char *operation)
{
    c->out.len = 0;
    hapax__json_put(&c->out, "{\"TableName\":\"");
    hapax__json_put(&c->out, c->ddb->uri.table);
    hapax__json_put(&c->out, "\"}");
    hapax__ddb_ask(c->ddb->aws, &c->call, operation, &c->out, c->deadline_us);
    return c->call.result == HAPAX__AWS_OK;
}

static bool find(const struct checking *c, const char *path, struct hapax_span *value)
{
    return hapax__ddb_find(value, c->call.reply, path);
}

static bool is(const struct checking *c, const char *path, const char *string)
{
    struct hapax_span value;

    return find(c, path, &value) && hapax__raw_says(value, string);
}

/* The Date header has whole seconds; the time of the round trip is no skew. */
static void check_clock(const struct checking *c, int64_t before_us, int64_t after_us)
{
    int64_t skew_us = c->ddb->uri.skew_ms * US_PER_MS;
    int64_t off_us = hapax__outside(c->call.date_s * US_PER_S, before_us - DATE_US, after_us);

    if (c->call.date_s <= 0) {
        tell(c, false, "its clock is not known, so that this host's cannot be compared with it");
        return;
    }
    if (off_us > skew_us || off_us < -skew_us)
        tell(c, true,
             "this host's clock is %" PRId64 " ms %s its clock, and skew=%" PRId64
             "ms: hosts that differ by more than that take claims over from one another that are "
             "still alive (set the clock, or raise skew everywhere)",
             (off_us > 0 ? off_us : -off_us) / US_PER_MS, off_us > 0 ? "behind" : "ahead of",
             c->ddb->uri.skew_ms);
    else
        tell(c, false,
             "this host's clock is within %" PRId64
             " ms of its clock, as far as its Date header tells",
             (off_us > 0 ? off_us : -off_us) / US_PER_MS);
}

static void check_regions(const struct checking *c)
{
    struct hapax__raw_walk walk;
    struct hapax_span value, name, replica;
    size_t n = 0;

    if (!find(c, "Table.Replicas", &value))
        return;
    hapax__raw_begin(&walk, value);
    while (hapax__raw_next(&walk, &name, &replica))
        n++;
    if (n == 0)
        return;
    if (is(c, "Table.MultiRegionConsistency", "STRONG"))
        tell(c, false,
             "it is a global table of strong consistency: conditions hold across its regions, at "
             "their distance");
    else
        tell(
            c, true,
            "it is a global table (%zu replicas), where the last writer wins: two regions may both "
            "claim an operation, and both run it. Let one region alone serve each key",
            n);
}

static enum hapax_error check_table(const struct checking *c)
{
    struct hapax__ddb *ddb = c->ddb;
    struct hapax_span value;
    char status[32];
    int64_t items = 0;

    if (!hapax__ddb_keyed(c->call.reply))
        return hapax_store_fail(&ddb->base, HAPAX_ERR_UNSUPPORTED,
                                "dynamodb: the table \"%.60s\" has another key than \"id\" and "
                                "\"part\" of bytes",
                                ddb->uri.table);
    if (!find(c, "Table.TableStatus", &value) || !hapax__raw_copy(status, sizeof(status), value))
        (void)snprintf(status, sizeof(status), "?");
    if (strcmp(status, "ACTIVE") != 0 && strcmp(status, "UPDATING") != 0)
        return hapax_store_fail(&ddb->base, HAPAX_ERR_UNAVAILABLE,
                                "dynamodb: the table \"%.60s\" is %s", ddb->uri.table, status);
    if (find(c, "Table.ItemCount", &value))
        (void)hapax__raw_number(&items, value);
    tell(c, false,
         "the table \"%s\" at %s is %s; DynamoDB, which counts about every six hours, last counted "
         "%" PRId64 " items",
         ddb->uri.table, hapax__aws_host(ddb->aws), status, items);
    if (is(c, "Table.BillingModeSummary.BillingMode", "PAY_PER_REQUEST"))
        tell(c, false, "it is paid by request");
    else
        tell(c, false,
             "its capacity is provisioned: what is over it is throttled, and operations are "
             "UNAVAILABLE meanwhile");
    if (find(c, "Table.DeletionProtectionEnabled", &value) && value.len == 4)
        tell(c, false, "it is protected from deletion");
    else
        tell(c, false,
             "it is not protected from deletion: all records go with it, and operations that "
             "are repeated run again");
    check_regions(c);
    return HAPAX_ERR_NONE;
}

static void check_ttl(struct checking *c)
{
    struct hapax_span value;
    char name[256] = "";

    if (!ask(c, "DescribeTimeToLive")) {
        tell(c, false, "its TTL is not known: %.160s", c->call.text);
        return;
    }
    if (find(c, "TimeToLiveDescription.AttributeName", &value))
        (void)hapax__raw_copy(name, sizeof(name), value);
    if (!is(c, "TimeToLiveDescription.TimeToLiveStatus", "ENABLED") &&
        !is(c, "TimeToLiveDescription.TimeToLiveStatus", "ENABLING"))
        tell(c, false,
             "its TTL is off: expired records stay, and are paid for (run \"hapax init\")");
    else if (strcmp(name, "x") != 0)
        tell(c, false,
             "its TTL is on the attribute \"%.60s\" and not on \"x\": expired records stay, "
             "and are paid for",
             name);
}

static void check_backups(struct checking *c)
{
    static const char path[] = "ContinuousBackupsDescription.PointInTimeRecoveryDescription."
                               "PointInTimeRecoveryStatus";

    if (!ask(c, "DescribeContinuousBackups"))
        tell(c, false, "its point-in-time recovery is not known: %.160s", c->call.text);
    else if (is(c, path, "ENABLED"))
        tell(c, false,
             "it can be restored to a point in time: operations since then run again if they "
             "are repeated");
    else
        tell(c, false, "it cannot be restored to a point in time");
}

/* Asks for writes that cannot happen: no item has this version under an id that nobody uses. */
static enum hapax_error check_rights(struct checking *c)
{
    static const struct hapax_id nobody;
    static const uint8_t v[HAPAX__DDB_V_LEN];
    struct hapax_record record = {.id = nobody, .state = HAPAX_STATE_STARTED};
    struct hapax__ddb_item item = {.r = {v, sizeof(v)}};
    struct hapax__ddb *ddb = c->ddb;

    hapax__ddb_ask_get(&c->out, ddb->uri.table, &nobody);
    hapax__ddb_ask(ddb->aws, &c->call, "GetItem", &c->out, c->deadline_us);
    if (c->call.result != HAPAX__AWS_OK)
        return hapax__ddb_error(ddb, &c->call);
    hapax__ddb_ask_put(&c->out, ddb->uri.table, &record, &item, v);
    hapax__ddb_ask(ddb->aws, &c->call, "PutItem", &c->out, c->deadline_us);
    if (strcmp(c->call.error, "ConditionalCheckFailedException") != 0)
        return hapax__ddb_error(ddb, &c->call);
    hapax__ddb_ask_delete(&c->out, ddb->uri.table, &nobody, v);
    hapax__ddb_ask(ddb->aws, &c->call, "DeleteItem", &c->out, c->deadline_us);
    if (strcmp(c->call.error, "ConditionalCheckFailedException") != 0)
        return hapax__ddb_error(ddb, &c->call);
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_all(struct checking *c)
{
    int64_t before_us = hapax__wall_us(), after_us;
    enum hapax_error error;

    if (ask(c, "DescribeTable")) {
        after_us = hapax__wall_us();
        error = check_table(c);
        if (error != HAPAX_ERR_NONE)
            return error;
        check_clock(c, before_us, after_us);
    } else {
        error = hapax__ddb_error(c->ddb, &c->call);
        if (error != HAPAX_ERR_REFUSED)
            return error;
        tell(c, false, "its settings are not known: %.160s", c->call.text);
    }
    error = check_rights(c);
    if (error != HAPAX_ERR_NONE)
        return error;
    check_ttl(c);
    check_backups(c);
    if (c->ddb->uri.endpoint[0] && strncmp(c->ddb->uri.endpoint, "http://", 7) == 0)
        tell(c, false, "the connection to %s is not encrypted", hapax__aws_host(c->ddb->aws));
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__ddb_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct hapax__ddb *ddb = (struct hapax__ddb *)store;
    struct checking c = {.ddb = ddb,
                         .deadline_us =
                             hapax__monotonic_us() + (ddb->uri.timeout_ms + 1000) * US_PER_MS,
                         .say = say,
                         .arg = arg};
    enum hapax_error error = check_all(&c);

    hapax__aws_call_release(&c.call);
    free(c.out.bytes);
    return error;
}

/* Any answer has a Date, a refusal too. */
enum hapax_error hapax__ddb_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct hapax__ddb *ddb = (struct hapax__ddb *)store;
    struct checking c = {.ddb = ddb};
    int64_t before_us = hapax__wall_us(), now_us = hapax__monotonic_us();
    enum hapax_error error = HAPAX_ERR_NONE;

    if (ddb->measured_us != 0 && now_us - ddb->measured_us < MEASURE_US) {
        *out = ddb->vitals;
        return HAPAX_ERR_NONE;
    }
    c.deadline_us = now_us + ddb->uri.timeout_ms * US_PER_MS;
    if (!ask(&c, "DescribeTable"))
        error = hapax__ddb_error(ddb, &c.call);
    if (c.call.date_s > 0) {
        out->clock_ahead_us =
            hapax__outside(c.call.date_s * US_PER_S, before_us - DATE_US, hapax__wall_us());
        ddb->vitals = *out;
        ddb->measured_us = now_us;
        error = HAPAX_ERR_NONE;
    }
    hapax__aws_call_release(&c.call);
    free(c.out.bytes);
    return error;
}
