/* SPDX-License-Identifier: Apache-2.0
 *
 * Outcomes and their names: each is unique, so whoever shows one shows whose it is. And what a door
 * makes of an upstream's answer.
 */
#include "sim.h"

#include <assert.h>
#include <string.h>

int new_result(struct sim *s, int id, int status)
{
    int n = s->results_count++;
    struct result *result = &s->results[n];

    assert(n < OUTCOMES_MAX);
    memset(result, 0, sizeof(*result));
    result->id = id;
    result->status = status;
    for (int i = 0; i < TEXT_LEN; i++) {
        result->headers[i] = (uint8_t)("h0000000"[i] + (i == 1 ? n / 64 : i == 2 ? n % 64 : 0));
        result->body[i] = (uint8_t)("b0000000"[i] + (i == 1 ? n / 64 : i == 2 ? n % 64 : 0));
    }
    return n;
}

struct hapax_outcome outcome_of(const struct sim *s, int result)
{
    const struct result *r = &s->results[result];

    return (struct hapax_outcome){
        .status = r->status,
        .body_kept = true,
        .headers = {r->headers, TEXT_LEN},
        .body = {r->body, TEXT_LEN},
    };
}

int result_of(const struct sim *s, const struct hapax_outcome *outcome)
{
    int n;

    if (outcome->headers.len != TEXT_LEN)
        return -1;
    n = (outcome->headers.ptr[1] - '0') * 64 + (outcome->headers.ptr[2] - '0');
    if (n < 0 || n >= s->results_count ||
        memcmp(s->results[n].headers, outcome->headers.ptr, TEXT_LEN) != 0 ||
        s->results[n].status != outcome->status)
        return -1;
    if (outcome->body_kept && (outcome->body.len != TEXT_LEN ||
                               memcmp(s->results[n].body, outcome->body.ptr, TEXT_LEN) != 0))
        return -1;
    return n;
}

static struct hapax_span find_said(void *response, const char *name)
{
    const struct said *said = response;

    return said->header && strcmp(said->header, name) == 0 ? hapax_str(said->value)
                                                           : (struct hapax_span){NULL, 0};
}

enum hapax_class class_of(const struct hapax_policy *policy, const struct said *answer)
{
    struct said said = *answer;

    return said.status == 0 ? HAPAX_CLASS_UNKNOWN
                            : hapax__class_of(policy, said.status, false, find_said, &said);
}
