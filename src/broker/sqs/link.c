/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls to SQS. The queue's URL is asked for by the queue's name. Rejected: a URL made from the
 * name. Accounts and stand-ins have URLs of their own, and the question also shows whether the
 * queue exists.
 */
#include "link.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

#define CONNECT_MS 3000
#define TRY_MS     5000
#define URL_MS     5000

enum hapax_error hapax__sqs_link_open(struct hapax__sqs_link *link, const char *uri,
                                      uint32_t connections, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    memset(link, 0, sizeof(*link));
    error = hapax__sqs_uri(&link->uri, uri, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    return hapax__aws_open(
        &link->aws,
        &(struct hapax__aws_options){
            .service = "sqs",
            .target = "AmazonSQS",
            .region = link->uri.region,
            .endpoint = link->uri.endpoint[0] != '\0' ? link->uri.endpoint : NULL,
            .profile = link->uri.profile[0] != '\0' ? link->uri.profile : NULL,
            .connections_max = connections,
            .connect_ms = CONNECT_MS,
            .try_ms = TRY_MS,
        },
        text);
}

void hapax__sqs_link_close(struct hapax__sqs_link *link)
{
    hapax__aws_close(link->aws);
    link->aws = NULL;
}

struct hapax__json_out *hapax__sqs_begin(struct hapax__sqs_call *call)
{
    assert(!call->busy);
    hapax__json_clear(&call->body);
    return &call->body;
}

bool hapax__sqs_submit(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                       const char *operation, int64_t within_ms, int64_t try_ms, bool once)
{
    assert(!call->busy);
    if (call->body.failed)
        return false;
    memset(&call->call, 0, sizeof(call->call));
    call->call.operation = operation;
    call->call.body = (struct hapax_span){(const uint8_t *)call->body.bytes, call->body.len};
    call->begun_us = hapax__monotonic_us();
    call->call.deadline_us = call->begun_us + within_ms * 1000;
    call->call.try_ms = try_ms;
    call->call.once = once;
    call->call.tag = call;
    call->busy = true;
    hapax__aws_submit(link->aws, &call->call);
    return true;
}

bool hapax__sqs_ask_url(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                        const char *queue)
{
    struct hapax__json_out *body = hapax__sqs_begin(call);

    hapax__json_put(body, "{\"QueueName\":");
    hapax__json_put_string(body, hapax_str(queue));
    if (link->uri.account[0] != '\0') {
        hapax__json_put(body, ",\"QueueOwnerAWSAccountId\":");
        hapax__json_put_string(body, hapax_str(link->uri.account));
    }
    hapax__json_put(body, "}");
    return hapax__sqs_submit(link, call, "GetQueueUrl", URL_MS, 0, false);
}

bool hapax__sqs_url(char out[HAPAX__SQS_URL_MAX], const struct hapax__sqs_call *call)
{
    struct hapax_span root, url;

    return hapax__sqs_read(&root, call->call.reply) && hapax__raw_member(&url, root, "QueueUrl") &&
           hapax__raw_copy(out, HAPAX__SQS_URL_MAX, url) && out[0];
}

struct hapax__sqs_call *hapax__sqs_reap(struct hapax__sqs_link *link)
{
    struct hapax__aws_call *ended = hapax__aws_reap(link->aws);
    struct hapax__sqs_call *call = ended ? ended->tag : NULL;

    if (call) {
        assert(call->busy && ended->result != HAPAX__AWS_OPEN);
        call->busy = false;
    }
    return call;
}

void hapax__sqs_done(struct hapax__sqs_call *call)
{
    assert(!call->busy);
    hapax__aws_call_release(&call->call);
}

void hapax__sqs_call_release(struct hapax__sqs_link *link, struct hapax__sqs_call *call)
{
    if (call->busy)
        hapax__aws_cancel(link->aws, &call->call);
    call->busy = false;
    hapax__aws_call_release(&call->call);
    hapax__json_free(&call->body);
}

/* ---- refusals ------------------------------------------------------------------------------ */

enum hapax__sqs_refusal hapax__sqs_refusal(const struct hapax__sqs_call *call)
{
    static const char *const gone[] = {"QueueDoesNotExist", "NonExistentQueue",
                                       "AWS.SimpleQueueService.NonExistentQueue"};
    static const char *const denied[] = {"AccessDenied", "AccessDeniedException", "KmsAccessDenied",
                                         "InvalidAddress", "InvalidSecurity"};

    if (call->call.result != HAPAX__AWS_REFUSED)
        return HAPAX__SQS_OTHER;
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        if (strcmp(call->call.error, gone[i]) == 0)
            return HAPAX__SQS_GONE;
    for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
        if (strcmp(call->call.error, denied[i]) == 0)
            return HAPAX__SQS_DENIED;
    return HAPAX__SQS_OTHER;
}
