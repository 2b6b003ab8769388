/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings `key`, `fingerprint`, `scope` and `step`, read once. What could be read in two ways is refused.
 */
#include "asks.h"

#include "base/fail.h"
#include "base/span.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADER_NAME_MAX 128u

/* ---- the settings ---------------------------------------------------------------------- */

static enum hapax_error read_pointers(struct hapax__lambda_ask *ask, struct key_source *source,
                                      struct hapax_span rest, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    source->kind = OF_POINTERS;
    source->first = ask->pointers.n;
    error = hapax__setting_pointers(&ask->pointers, rest, "key", text);
    source->count = ask->pointers.n - source->first;
    return error;
}

static enum source_kind kind_of(struct hapax_span word)
{
    if (hapax__name_is(word, "Idempotency-Key") || hapax__name_is(word, "x-idempotency-key"))
        return OF_KEY_HEADER;
    if (hapax__name_is(word, "event-id"))
        return OF_EVENT_ID;
    if (hapax__name_is(word, "request-id"))
        return OF_REQUEST_ID;
    return hapax__name_is(word, "payload") ? OF_PAYLOAD : OF_HEADER;
}

static enum hapax_error read_source(struct hapax__lambda_ask *ask, struct hapax_span word,
                                    char text[HAPAX_TEXT_MAX])
{
    struct key_source *source = &ask->sources[ask->source_count];

    if (word.len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has an empty source");
    if (ask->source_count == HAPAX__SOURCES_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has over %u sources", HAPAX__SOURCES_MAX);
    if (ask->source_count > 0 && source[-1].kind == OF_PAYLOAD)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "key has a source behind payload, which every event has");
    if (word.ptr[0] != '/' && (word.len > HEADER_NAME_MAX || memchr(word.ptr, ' ', word.len)))
        return hapax__setting_refuse(text, "key", word, "no name of a header, and no JSON Pointer");
    ask->source_count++;
    if (word.ptr[0] == '/')
        return read_pointers(ask, source, word, text);
    source->kind = kind_of(word);
    source->name = word;
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_key(struct hapax__lambda_ask *ask, const char *setting,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(setting ? setting : "Idempotency-Key,event-id");
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;

    while (error == HAPAX_ERR_NONE && hapax__setting_word(&word, &rest, ','))
        error = read_source(ask, word, text);
    return error;
}

static enum hapax_error read_part(struct hapax__lambda_ask *ask, struct hapax_span word,
                                  char text[HAPAX_TEXT_MAX])
{
    if (hapax__setting_selects(word)) {
        if (ask->counts == COUNTS_BYTES)
            return hapax__fail(text, HAPAX_ERR_INVALID,
                               "fingerprint takes body, or JSON and pointers, not both");
        ask->counts = COUNTS_JSON;
        return hapax__setting_select(&ask->selected, &ask->select, word, text);
    }
    if (hapax__name_is(word, "method"))
        ask->method = true;
    else if (hapax__name_is(word, "uri"))
        ask->uri = true;
    else if (hapax__name_is(word, "body") && ask->counts == COUNTS_NOTHING)
        ask->counts = COUNTS_BYTES;
    else if (hapax__name_is(word, "json") && ask->counts != COUNTS_BYTES)
        ask->counts = COUNTS_JSON;
    else
        return hapax__setting_refuse(
            text, "fingerprint", word,
            "takes method, uri, then body, or json, +/POINTER, -/POINTER; or off");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_fingerprint(struct hapax__lambda_ask *ask, const char *setting,
                                         char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(setting ? setting : "method uri body");
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;
    size_t words = 0;

    if (hapax__name_is(rest, "off"))
        return HAPAX_ERR_NONE;
    while (error == HAPAX_ERR_NONE && hapax__setting_word(&word, &rest, ' '))
        if (word.len > 0) {
            error = read_part(ask, word, text);
            words++;
        }
    if (error == HAPAX_ERR_NONE && words == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint is empty");
    return error;
}

static enum hapax_error read_names(struct hapax__lambda_ask *ask, const struct hapax_lambda *lambda,
                                   char text[HAPAX_TEXT_MAX])
{
    ask->scope = hapax_str(lambda->scope ? lambda->scope : "default");
    ask->step = hapax_str(lambda->step);
    if (ask->scope.len == 0 || ask->scope.len > HAPAX_SCOPE_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope of %zu bytes is not 1 to %u",
                           ask->scope.len, HAPAX_SCOPE_MAX);
    if (!lambda->step)
        return HAPAX_ERR_NONE;
    if (ask->step.len == 0 || ask->step.len > HAPAX_STEP_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "step of %zu bytes is not 1 to %u",
                           ask->step.len, HAPAX_STEP_MAX);
    if (ask->step.ptr[0] == '.' || memchr(ask->step.ptr, ':', ask->step.len))
        return hapax__setting_refuse(text, "step", ask->step, "begins with a '.', or holds a ':'");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__lambda_ask_open(struct hapax__lambda_ask **out,
                                        const struct hapax_lambda *lambda,
                                        char text[HAPAX_TEXT_MAX])
{
    struct hapax__lambda_ask *ask = calloc(1, sizeof(*ask));
    enum hapax_error error;

    *out = NULL;
    if (!ask)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read the settings: out of memory");
    ask->select = HAPAX__JSON_INCLUDE;
    ask->request_max = lambda->policy.max_request;
    error = read_names(ask, lambda, text);
    if (error == HAPAX_ERR_NONE)
        error = read_key(ask, lambda->key, text);
    if (error == HAPAX_ERR_NONE)
        error = read_fingerprint(ask, lambda->fingerprint, text);
    if (error != HAPAX_ERR_NONE) {
        free(ask);
        return error;
    }
    *out = ask;
    return HAPAX_ERR_NONE;
}

void hapax__lambda_ask_close(struct hapax__lambda_ask *ask)
{
    free(ask);
}
