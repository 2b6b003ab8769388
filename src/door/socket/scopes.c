/* SPDX-License-Identifier: Apache-2.0 */
#include "scopes.h"

#include "base/fail.h"
#include "base/span.h"
#include "base/utf8.h"
#include "meta.h"
#include "json/raw.h"

#include <stdlib.h>

#define SHOWN_MAX 64

static enum hapax_error read_scope(struct hapax__scopes *scopes, struct hapax_span name,
                                   struct hapax_span value, char text[HAPAX_TEXT_MAX])
{
    struct hapax__scope *scope = &scopes->named[scopes->n];
    char why[HAPAX_TEXT_MAX];

    /* The name has quotes: two bytes more. */
    if (name.len < 3 || name.len > HAPAX_SCOPE_MAX + 2)
        return hapax__fail(text, HAPAX_ERR_INVALID, "a scope's name is not of 1 to %u bytes",
                           HAPAX_SCOPE_MAX);
    scope->name_len = hapax__raw_unescape(scope->name, name);
    if (!hapax__raw_is_object(value))
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope \"%.*s\" has no object of policies",
                           SHOWN_MAX, scope->name);
    if (hapax__scopes_find(scopes, (struct hapax_span){scope->name, scope->name_len}) !=
        &scopes->policy)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope \"%.*s\" stands there twice", SHOWN_MAX,
                           scope->name);
    scope->policy = scopes->policy;
    if (hapax__meta_policy_set(&scope->policy, value, why) != HAPAX_ERR_NONE ||
        hapax_policy_check(&scope->policy, why) != HAPAX_ERR_NONE)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope \"%.*s\": %.150s", SHOWN_MAX,
                           scope->name, why);
    scopes->n++;
    return HAPAX_ERR_NONE;
}

static size_t count(struct hapax_span object)
{
    struct hapax_span name, value;
    struct hapax__raw_walk walk;
    size_t n = 0;

    hapax__raw_begin(&walk, object);
    while (hapax__raw_next(&walk, &name, &value))
        n++;
    return n;
}

enum hapax_error hapax__scopes_read(struct hapax__scopes *scopes, struct hapax_span json,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax_span object, name, value;
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax__raw_walk walk;

    scopes->named = NULL;
    scopes->n = 0;
    if (!hapax__is_utf8(json) || !hapax__raw_check(&object, json) || !hapax__raw_is_object(object))
        return hapax__fail(text, HAPAX_ERR_INVALID, "it is no JSON object in UTF-8");
    if (count(object) > HAPAX__SCOPES_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "it has over %u scopes", HAPAX__SCOPES_MAX);
    scopes->named = calloc(count(object) + 1, sizeof(*scopes->named));
    if (!scopes->named)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    hapax__raw_begin(&walk, object);
    while (error == HAPAX_ERR_NONE && hapax__raw_next(&walk, &name, &value))
        error = read_scope(scopes, name, value, text);
    if (error != HAPAX_ERR_NONE)
        hapax__scopes_release(scopes);
    return error;
}

void hapax__scopes_release(struct hapax__scopes *scopes)
{
    free(scopes->named);
    scopes->named = NULL;
    scopes->n = 0;
}

const struct hapax_policy *hapax__scopes_find(const struct hapax__scopes *scopes,
                                              struct hapax_span name)
{
    for (size_t i = 0; i < scopes->n; i++) {
        const struct hapax__scope *scope = &scopes->named[i];

        if (hapax__same((struct hapax_span){scope->name, scope->name_len}, name))
            return &scope->policy;
    }
    return &scopes->policy;
}
