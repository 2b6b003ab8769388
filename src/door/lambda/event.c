/* SPDX-License-Identifier: Apache-2.0
 *
 * The kind of an event. The shapes are those that AWS documents for its event sources. An event of
 * no such shape is PLAIN, and is passed on as it is.
 */
#include "event.h"
#include "json/raw.h"

#include <assert.h>
#include <string.h>

const char *hapax_lambda_kind_name(enum hapax_lambda_kind kind)
{
    static const char *const names[] = {NULL,  "plain",       "rest",      "http",
                                        "alb", "sqs",         "kinesis",   "dynamodb",
                                        "sns", "eventbridge", "cloudevent"};

    assert(kind >= HAPAX_LAMBDA_PLAIN && kind <= HAPAX_LAMBDA_CLOUDEVENT);
    return names[kind];
}

static bool has_string(struct hapax_span root, const char *path)
{
    struct hapax_span value;

    return hapax__raw_member(&value, root, path) && hapax__raw_is_string(value);
}

static bool says(struct hapax_span root, const char *path, const char *text)
{
    struct hapax_span value;

    return hapax__raw_member(&value, root, path) && hapax__raw_says(value, text);
}

static enum hapax_lambda_kind kind_of_record(struct hapax_span record)
{
    if (says(record, "eventSource", "aws:sqs") && has_string(record, "messageId"))
        return HAPAX_LAMBDA_SQS;
    if (says(record, "eventSource", "aws:kinesis") && has_string(record, "kinesis.sequenceNumber"))
        return HAPAX_LAMBDA_KINESIS;
    if (says(record, "eventSource", "aws:dynamodb") &&
        has_string(record, "dynamodb.SequenceNumber"))
        return HAPAX_LAMBDA_DYNAMODB;
    if (says(record, "EventSource", "aws:sns") && has_string(record, "Sns.MessageId"))
        return HAPAX_LAMBDA_SNS;
    return HAPAX_LAMBDA_PLAIN;
}

/* All records are of one kind, or it is none of the kinds that have records. */
static enum hapax_lambda_kind kind_of_records(struct hapax_span records)
{
    enum hapax_lambda_kind kind = HAPAX_LAMBDA_PLAIN;
    struct hapax__raw_walk walk;
    struct hapax_span name, record;
    size_t n = 0;

    hapax__raw_begin(&walk, records);
    for (; hapax__raw_next(&walk, &name, &record); n++) {
        enum hapax_lambda_kind its = kind_of_record(record);

        if (its == HAPAX_LAMBDA_PLAIN || (n > 0 && its != kind))
            return HAPAX_LAMBDA_PLAIN;
        kind = its;
    }
    return kind == HAPAX_LAMBDA_SNS && n != 1 ? HAPAX_LAMBDA_PLAIN : kind;
}

bool hapax__event_is_windowed(struct hapax_span root)
{
    struct hapax_span records, window;

    return hapax__raw_is_object(root) && hapax__raw_member(&records, root, "Records") &&
           hapax__raw_is_array(records) && hapax__raw_member(&window, root, "window") &&
           hapax__raw_is_object(window) && has_string(root, "shardId");
}

enum hapax_lambda_kind hapax__event_kind(struct hapax_span root)
{
    struct hapax_span value;

    if (!hapax__raw_is_object(root))
        return HAPAX_LAMBDA_PLAIN;
    if (hapax__raw_member(&value, root, "requestContext") && hapax__raw_is_object(value)) {
        if (hapax__raw_member(&value, root, "requestContext.elb") && has_string(root, "httpMethod"))
            return HAPAX_LAMBDA_ALB;
        if (has_string(root, "requestContext.http.method") && says(root, "version", "2.0"))
            return HAPAX_LAMBDA_HTTP;
        if (has_string(root, "httpMethod"))
            return HAPAX_LAMBDA_REST;
    }
    if (hapax__raw_member(&value, root, "Records") && hapax__raw_is_array(value))
        return hapax__event_is_windowed(root) ? HAPAX_LAMBDA_PLAIN : kind_of_records(value);
    if (has_string(root, "specversion") && has_string(root, "source") && has_string(root, "id"))
        return HAPAX_LAMBDA_CLOUDEVENT;
    if (has_string(root, "detail-type") && has_string(root, "source") && has_string(root, "id"))
        return HAPAX_LAMBDA_EVENTBRIDGE;
    return HAPAX_LAMBDA_PLAIN;
}
