/* SPDX-License-Identifier: Apache-2.0
 *
 * What an error reply means for its command.
 *
 * Redis refuses a command before it begins with a word of its own (MOVED, LOADING, OOM, …), and the
 * commands inside a script before its first write. Every other error of a script may have come
 * after a write, so that the script's result is not known. Errors are told apart by their first
 * word alone: the rest of their text is for people. /
 */
#include "result.h"

#include "base/span.h"

static const struct {
    const char *word;
    enum hapax__redis_result result;
} results[] = {
    {"MOVED", HAPAX__REDIS_RESULT_MOVED},           {"ASK", HAPAX__REDIS_RESULT_ASK},
    {"NOSCRIPT", HAPAX__REDIS_RESULT_SCRIPT},       {"TRYAGAIN", HAPAX__REDIS_RESULT_AGAIN},
    {"CLUSTERDOWN", HAPAX__REDIS_RESULT_ELSEWHERE}, {"LOADING", HAPAX__REDIS_RESULT_ELSEWHERE},
    {"READONLY", HAPAX__REDIS_RESULT_ELSEWHERE},    {"MASTERDOWN", HAPAX__REDIS_RESULT_ELSEWHERE},
    {"BUSY", HAPAX__REDIS_RESULT_UNAVAILABLE},      {"OOM", HAPAX__REDIS_RESULT_UNAVAILABLE},
    {"MISCONF", HAPAX__REDIS_RESULT_UNAVAILABLE},   {"NOREPLICAS", HAPAX__REDIS_RESULT_UNAVAILABLE},
    {"NOAUTH", HAPAX__REDIS_RESULT_REFUSED},        {"WRONGPASS", HAPAX__REDIS_RESULT_REFUSED},
    {"NOPERM", HAPAX__REDIS_RESULT_REFUSED},        {"DENIED", HAPAX__REDIS_RESULT_REFUSED},
};

enum hapax__redis_result hapax__redis_result(const struct hapax__resp *reply, bool script)
{
    const char *space = memchr(reply->str, ' ', reply->len);
    const struct hapax_span word = {(const uint8_t *)reply->str,
                                    space ? (size_t)(space - reply->str) : reply->len};

    /* Too many clients: this comes in place of a greeting, before Redis reads anything. */
    if (hapax__text_begins(reply->str, "ERR max number of clients"))
        return HAPAX__REDIS_RESULT_UNAVAILABLE;
    for (size_t k = 0; k < sizeof(results) / sizeof(results[0]); k++) {
        if (!hapax__is(word, results[k].word))
            continue;
        /* A permission that is missing half-way through a script comes after its writes. */
        if (script && results[k].result == HAPAX__REDIS_RESULT_REFUSED &&
            strstr(reply->str, "script"))
            return HAPAX__REDIS_RESULT_ERROR;
        return results[k].result;
    }
    return HAPAX__REDIS_RESULT_ERROR;
}
