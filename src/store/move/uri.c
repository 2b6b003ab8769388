/* SPDX-License-Identifier: Apache-2.0
 *
 * The URI of a move. Each half is read by its own store; here nothing is known of a half but where
 * it ends, as in a hybrid: URI.
 */
#include "move.h"

#include "base/fail.h"
#include "base/span.h"
#include "store/types.h"

#include <stdlib.h>
#include <string.h>

#define URI_MAX 4096u

void hapax__move_uris_release(struct hapax__move_uris *uris)
{
    if (uris->copy)
        explicit_bzero(uris->copy, uris->size); /* there are passwords in it */
    free(uris->copy);
}

static enum hapax_error wrong(char text[HAPAX_TEXT_MAX], const char *what)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "the move URI is wrong: %s", what);
}

/* The next `+` behind which a known scheme stands; NULL: none. */
static char *next_scheme(char *at)
{
    for (at = strchr(at, '+'); at && !hapax__store_known(at + 1); at = strchr(at + 1, '+'))
        ;
    return at;
}

enum hapax_error hapax__move_uris(struct hapax__move_uris *out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    char *plus;

    memset(out, 0, sizeof(*out));
    if (strlen(uri) > URI_MAX)
        return wrong(text, "it is over 4096 bytes");
    out->copy = strdup(uri + strcspn(uri, ":") + 1);
    if (!out->copy)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    out->size = strlen(out->copy);
    plus = next_scheme(out->copy);
    if (plus && hapax__text_begins(out->copy, "hybrid:"))
        plus = next_scheme(plus + 1);
    if (!plus || !hapax__store_known(out->copy))
        return wrong(text, "it is not move:OLD-URI+NEW-URI");
    *plus = '\0';
    out->of[HAPAX__HALF_OLD] = out->copy;
    out->of[HAPAX__HALF_NEW] = plus + 1;
    if (hapax__text_begins(out->copy, "move:") || hapax__text_begins(plus + 1, "move:"))
        return wrong(text, "one of its two stores is a move: itself");
    if (strcmp(out->copy, plus + 1) == 0 && !hapax__text_begins(out->copy, "memory:"))
        return wrong(text, "its two stores are one");
    return HAPAX_ERR_NONE;
}
