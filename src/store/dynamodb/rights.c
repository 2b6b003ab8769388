/* SPDX-License-Identifier: Apache-2.0
 *
 * Which policies of IAM the credentials of doors, of operators, of hapax check and of hapax init
 * need. IAM knows calls and not ops: whoever may complete an operation may write any item. What a
 * door lacks is Scan, which finds records, and all that changes the table.
 */
#include "aws/endpoint.h"
#include "base/fail.h"
#include "dynamodb.h"

#include <stdio.h>

#define ITEMS "\"dynamodb:GetItem\", \"dynamodb:PutItem\", \"dynamodb:DeleteItem\""

static const struct {
    const char *use;
    const char *actions;
} policies[] = {
    {"door", ITEMS},
    {"operator", ITEMS ", \"dynamodb:Scan\""},
    {"check", ITEMS ", \"dynamodb:DescribeTable\", \"dynamodb:DescribeTimeToLive\", "
                    "\"dynamodb:DescribeContinuousBackups\""},
    {"init",
     "\"dynamodb:CreateTable\", \"dynamodb:DescribeTable\", \"dynamodb:DescribeTimeToLive\", "
     "\"dynamodb:UpdateTimeToLive\", \"dynamodb:PutItem\""}, /* it binds the secret */
};

enum hapax_error hapax__ddb_rights(const char *uri, const char *use, const char *role, bool print,
                                   hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX])
{
    const size_t n = sizeof(policies) / sizeof(policies[0]);
    struct hapax__ddb_uri read;
    enum hapax_error error = hapax__ddb_uri(&read, uri, text);
    char line[sizeof(read.region) + sizeof(read.table) + 64];

    if (error == HAPAX_ERR_NONE && (use || role || !print))
        error = hapax__fail(text, HAPAX_ERR_INVALID,
                            "the rights on a table of DynamoDB are policies of IAM, not made by "
                            "--role: --print-acl prints them");
    if (error != HAPAX_ERR_NONE)
        return error;
    say(arg, false, "{");
    for (size_t i = 0; i < n; i++) {
        hapax__tell(
            say, arg, false,
            "  \"%s\": {\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\",",
            policies[i].use);
        hapax__tell(say, arg, false, "    \"Action\": [%s],", policies[i].actions);
        (void)snprintf(
            line, sizeof(line), "    \"Resource\": \"arn:%s:dynamodb:%s:*:table/%s\"}]}%s",
            hapax__aws_partition(read.region), read.region, read.table, i + 1 < n ? "," : "");
        say(arg, false, line);
    }
    say(arg, false, "}");
    return HAPAX_ERR_NONE;
}
