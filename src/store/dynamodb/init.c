/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax init on DynamoDB: makes the table, paid by request, and its TTL. What is there already
 * stays as it is; a table with another key is refused. --print prints the same for AWS's command
 * line.
 */
#include "dynamodb.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define INIT_MS  INT64_C(120000) /* a table may take some ten seconds */
#define PAUSE_MS 200

struct making {
    const struct hapax__ddb_uri *uri;
    struct hapax__aws *aws;
    struct hapax__aws_call call;
    struct hapax__json_out out;
    int64_t deadline_us;
    hapax_say *say;
    void *arg;
    char *text;
};

/* Asks with the table's name, and what follows it. */
static bool ask(struct making *making, const char *operation, const char *rest)
{
    making->out.len = 0;
    hapax__json_put(&making->out, "{\"TableName\":\"");
    hapax__json_put(&making->out, making->uri->table);
    hapax__json_put(&making->out, "\"");
    hapax__json_put(&making->out, rest);
    hapax__json_put(&making->out, "}");
    hapax__ddb_ask(making->aws, &making->call, operation, &making->out, making->deadline_us);
    return making->call.result == HAPAX__AWS_OK;
}

static bool said(const struct making *making, const char *error)
{
    return making->call.result == HAPAX__AWS_REFUSED && strcmp(making->call.error, error) == 0;
}

static enum hapax_error failed(struct making *making)
{
    return hapax__ddb_error_text(making->aws, making->uri->table, &making->call, making->text);
}

static enum hapax_error look(struct making *making, bool *there, bool *active)
{
    struct hapax_span value, status;

    *there = *active = false;
    if (!ask(making, "DescribeTable", ""))
        return said(making, "ResourceNotFoundException") ? HAPAX_ERR_NONE : failed(making);
    if (!hapax__ddb_find(&status, making->call.reply, "Table.TableStatus") ||
        !hapax__ddb_find(&value, making->call.reply, "Table.KeySchema"))
        return hapax__fail(making->text, HAPAX_ERR_UNAVAILABLE, "dynamodb: a reply makes no sense");
    if (!hapax__ddb_keyed(making->call.reply))
        return hapax__fail(
            making->text, HAPAX_ERR_UNSUPPORTED,
            "dynamodb: the table \"%.60s\" has another key than \"id\" and \"part\" of "
            "bytes (name a table that is not in use)",
            making->uri->table);
    *there = true;
    *active = hapax__raw_says(status, "ACTIVE") || hapax__raw_says(status, "UPDATING");
    return HAPAX_ERR_NONE;
}

static enum hapax_error create(struct making *making)
{
    static const char rest[] =
        ",\"AttributeDefinitions\":[{\"AttributeName\":\"id\",\"AttributeType\":\"B\"},"
        "{\"AttributeName\":\"part\",\"AttributeType\":\"B\"}],"
        "\"KeySchema\":[{\"AttributeName\":\"id\",\"KeyType\":\"HASH\"},"
        "{\"AttributeName\":\"part\",\"KeyType\":\"RANGE\"}],"
        "\"BillingMode\":\"PAY_PER_REQUEST\"";

    if (!ask(making, "CreateTable", rest) && !said(making, "ResourceInUseException"))
        return failed(making);
    hapax__tell(making->say, making->arg, false, "made the table \"%s\" at %s", making->uri->table,
                hapax__aws_host(making->aws));
    return HAPAX_ERR_NONE;
}

/* A table is of no use until it is ACTIVE. */
static enum hapax_error make_table(struct making *making)
{
    bool there, active, created = false;

    for (;;) {
        enum hapax_error error = look(making, &there, &active);

        if (error != HAPAX_ERR_NONE || active)
            return error;
        if (!there && !created) {
            created = true;
            error = create(making);
            if (error != HAPAX_ERR_NONE)
                return error;
            continue;
        }
        if (hapax__monotonic_us() >= making->deadline_us)
            return hapax__fail(making->text, HAPAX_ERR_UNAVAILABLE,
                               "dynamodb: the table \"%.60s\" is not ready after two minutes",
                               making->uri->table);
        poll(NULL, 0, PAUSE_MS);
    }
}

static enum hapax_error no_ttl(struct making *making)
{
    if (!said(making, "UnknownOperationException"))
        return failed(making);
    hapax__tell(making->say, making->arg, false,
                "this server has no TTL: expired records stay until somebody removes them");
    return HAPAX_ERR_NONE;
}

static enum hapax_error make_ttl(struct making *making)
{
    struct hapax_span value;

    if (!ask(making, "DescribeTimeToLive", ""))
        return no_ttl(making);
    if (hapax__ddb_find(&value, making->call.reply, "TimeToLiveDescription.TimeToLiveStatus") &&
        (hapax__raw_says(value, "ENABLED") || hapax__raw_says(value, "ENABLING")))
        return HAPAX_ERR_NONE;
    if (!ask(making, "UpdateTimeToLive",
             ",\"TimeToLiveSpecification\":{\"AttributeName\":\"x\",\"Enabled\":true}"))
        return no_ttl(making);
    hapax__tell(making->say, making->arg, false, "records go by the TTL attribute \"x\"");
    return HAPAX_ERR_NONE;
}

static void print_line(const struct hapax__ddb_uri *uri, hapax_say *say, void *arg,
                       const char *command, const char *rest)
{
    char where[640];

    (void)snprintf(where, sizeof(where), "--region %s%s%s%s%s", uri->region,
                   uri->profile[0] ? " --profile " : "", uri->profile,
                   uri->endpoint[0] ? " --endpoint-url " : "", uri->endpoint);
    {
        char line[1280];

        (void)snprintf(line, sizeof(line), "aws dynamodb %s %s --table-name %s%s", command, where,
                       uri->table, rest);
        say(arg, false, line);
    }
}

static void print(const struct hapax__ddb_uri *uri, hapax_say *say, void *arg)
{
    print_line(uri, say, arg, "create-table",
               " --attribute-definitions AttributeName=id,AttributeType=B"
               " AttributeName=part,AttributeType=B"
               " --key-schema AttributeName=id,KeyType=HASH AttributeName=part,KeyType=RANGE"
               " --billing-mode PAY_PER_REQUEST");
    print_line(uri, say, arg, "wait table-exists", "");
    print_line(uri, say, arg, "update-time-to-live",
               " --time-to-live-specification Enabled=true,AttributeName=x");
}

enum hapax_error hapax__ddb_init(const char *uri, bool printed, hapax_say *say, void *arg,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax__ddb_uri read;
    struct making making = {.uri = &read,
                            .deadline_us = hapax__monotonic_us() + INIT_MS * US_PER_MS,
                            .say = say,
                            .arg = arg,
                            .text = text};
    enum hapax_error error = hapax__ddb_uri(&read, uri, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (printed) {
        print(&read, say, arg);
        return HAPAX_ERR_NONE;
    }
    error = hapax__ddb_client(&making.aws, &read, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    error = make_table(&making);
    if (error == HAPAX_ERR_NONE)
        error = make_ttl(&making);
    hapax__aws_call_release(&making.call);
    hapax__aws_close(making.aws);
    free(making.out.bytes);
    return error;
}
