/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of DynamoDB by itself, and what the end of a call means for an op.
 */
#include "dynamodb.h"

#include "aws/fetch.h"
#include "base/fail.h"
#include "base/span.h"

#include <string.h>

static const struct {
    const char *name;
    enum hapax_error error;
    const char *hint;
} meanings[] = {
    {"ResourceNotFoundException", HAPAX_ERR_UNSUPPORTED,
     "there is no such table (run \"hapax init\")"},
    {"AccessDeniedException", HAPAX_ERR_REFUSED, NULL},
    {"AccessDenied", HAPAX_ERR_REFUSED, NULL},
    {"UnrecognizedClientException", HAPAX_ERR_REFUSED, NULL},
    {"InvalidClientTokenId", HAPAX_ERR_REFUSED, NULL},
    {"InvalidSignatureException", HAPAX_ERR_REFUSED, NULL},
    {"SignatureDoesNotMatch", HAPAX_ERR_REFUSED, NULL},
    {"IncompleteSignatureException", HAPAX_ERR_REFUSED, NULL},
    {"MissingAuthenticationTokenException", HAPAX_ERR_REFUSED, NULL},
    {"MissingAuthenticationToken", HAPAX_ERR_REFUSED, NULL},
    {"ExpiredTokenException", HAPAX_ERR_REFUSED, NULL},
    {"KMSAccessDeniedException", HAPAX_ERR_REFUSED, NULL},
    {"UnknownOperationException", HAPAX_ERR_UNSUPPORTED, NULL},
};

enum hapax_error hapax__ddb_error_text(const struct hapax__aws *aws, const char *table,
                                       const struct hapax__aws_call *call,
                                       char text[HAPAX_TEXT_MAX])
{
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (call->result == HAPAX__AWS_INDETERMINATE || strcmp(meanings[i].name, call->error) != 0)
            continue;
        return hapax__fail(text, meanings[i].error, "dynamodb: %.60s, table \"%.60s\": %.110s",
                           hapax__aws_host(aws), table,
                           meanings[i].hint ? meanings[i].hint : call->text);
    }
    return hapax__fail(text,
                       call->result == HAPAX__AWS_INDETERMINATE ? HAPAX_ERR_INDETERMINATE
                                                                : HAPAX_ERR_UNAVAILABLE,
                       "dynamodb: %.240s", call->text);
}

enum hapax_error hapax__ddb_error(struct hapax__ddb *ddb, const struct hapax__aws_call *call)
{
    return hapax__ddb_error_text(ddb->aws, ddb->uri.table, call, ddb->base.text);
}

enum hapax_error hapax__ddb_unreadable(struct hapax__ddb *ddb, const struct hapax_id *id,
                                       enum hapax_error error, const char *why)
{
    char hex[2 * sizeof(id->bytes) + 1];

    *hapax__hex(hex, id->bytes, sizeof(id->bytes)) = '\0';
    if (!why)
        why = error == HAPAX_ERR_CORRUPT ? "it is damaged" : "a newer version of hapax wrote it";
    return hapax_store_fail(&ddb->base, error, "cannot read record \"%s\": %s", hex, why);
}

enum hapax_error hapax__ddb_nonsense(struct hapax__ddb *ddb)
{
    return hapax_store_fail(&ddb->base, HAPAX_ERR_UNAVAILABLE, "dynamodb: a reply makes no sense");
}

void hapax__ddb_ask(struct hapax__aws *aws, struct hapax__aws_call *call, const char *operation,
                    const struct hapax__json_out *body, int64_t deadline_us)
{
    hapax__aws_call_release(call);
    *call = (struct hapax__aws_call){.operation = operation, .deadline_us = deadline_us};
    if (body->failed) {
        call->result = HAPAX__AWS_UNAVAILABLE;
        (void)hapax__fail(call->text, HAPAX_ERR_NOMEM, "out of memory for a request");
        return;
    }
    call->body = (struct hapax_span){(const uint8_t *)body->bytes, body->len};
    hapax__aws_run(aws, call, 1);
}
