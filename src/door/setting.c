/* SPDX-License-Identifier: Apache-2.0
 *
 * Words and pointers of the doors' settings. What could be read in two ways is refused, for whoever writes it means one.
 */
#include "setting.h"

#include "base/fail.h"

#include <string.h>

bool hapax__setting_word(struct hapax_span *word, struct hapax_span *rest, uint8_t by)
{
    const uint8_t *end;

    if (!rest->ptr)
        return false;
    end = rest->len > 0 ? memchr(rest->ptr, by, rest->len) : NULL;
    *word = *rest;
    *rest = (struct hapax_span){NULL, 0};
    if (end) {
        size_t len = (size_t)(end - word->ptr);

        *rest = (struct hapax_span){end + 1, word->len - len - 1};
        word->len = len;
    }
    while (word->len > 0 && word->ptr[0] == ' ') {
        word->ptr++;
        word->len--;
    }
    while (word->len > 0 && word->ptr[word->len - 1] == ' ')
        word->len--;
    return true;
}

enum hapax_error hapax__setting_refuse(char text[HAPAX_TEXT_MAX], const char *setting,
                                       struct hapax_span word, const char *why)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "%s \"%.*s\": %s", setting,
                       word.len < 64 ? (int)word.len : 64, (const char *)word.ptr, why);
}

static enum hapax_error add(struct hapax__pointers *pointers, struct hapax_span word,
                            const char *setting, char text[HAPAX_TEXT_MAX])
{
    const char *why;

    if (pointers->n == HAPAX__JSON_POINTERS_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s has over %u pointers", setting,
                           HAPAX__JSON_POINTERS_MAX);
    if (!hapax__json_pointer_check(word, &why))
        return hapax__setting_refuse(text, setting, word, why);
    pointers->at[pointers->n++] = word;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__setting_pointers(struct hapax__pointers *pointers, struct hapax_span rest,
                                         const char *setting, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;

    while (error == HAPAX_ERR_NONE && hapax__setting_word(&word, &rest, ' '))
        if (word.len > 0)
            error = add(pointers, word, setting, text);
    return error;
}

bool hapax__setting_selects(struct hapax_span word)
{
    return word.ptr[0] == '/' || (word.len > 1 && strchr("+-", word.ptr[0]) && word.ptr[1] == '/');
}

enum hapax_error hapax__setting_select(struct hapax__pointers *pointers,
                                       enum hapax__json_select *select, struct hapax_span word,
                                       char text[HAPAX_TEXT_MAX])
{
    enum hapax__json_select said = word.ptr[0] == '-' ? HAPAX__JSON_EXCLUDE : HAPAX__JSON_INCLUDE;

    if (word.ptr[0] != '/') {
        word.ptr++;
        word.len--;
    }
    if (pointers->n > 0 && *select != said)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "fingerprint takes pointers with + or with -, not both");
    *select = said;
    return add(pointers, word, "fingerprint", text);
}
