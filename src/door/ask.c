/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request asks. A setting that could be read in two ways is refused.
 */
#include "ask.h"

#include "base/fail.h"
#include "base/span.h"
#include "core/key.h"

#include <assert.h>
#include <openssl/sha.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------------- */

/* Takes the text before the next `by` off *rest, without the spaces around it; the word may be
 * empty. False: there are no more words. */
static bool take_word(struct hapax_span *word, struct hapax_span *rest, uint8_t by)
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

static enum hapax_error add_pointer(struct hapax__ask_pointers *pointers, struct hapax_span word,
                                    const char *setting, char text[HAPAX_TEXT_MAX])
{
    const char *why;

    if (pointers->n == HAPAX__JSON_POINTERS_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s has over %u pointers", setting,
                           HAPAX__JSON_POINTERS_MAX);
    if (!hapax__json_pointer_check(word, &why))
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s \"%.*s\": %s", setting,
                           word.len < 64 ? (int)word.len : 64, (const char *)word.ptr, why);
    pointers->at[pointers->n++] = word;
    return HAPAX_ERR_NONE;
}

/* Adds the pointers of one source, parted by spaces. */
static enum hapax_error read_pointers(struct hapax__ask *ask, struct hapax__ask_source *source,
                                      struct hapax_span words, const char *setting,
                                      char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span pointer;

    source->kind = HAPAX__ASK_POINTERS;
    source->name = words;
    source->first = ask->pointers.n;
    while (error == HAPAX_ERR_NONE && take_word(&pointer, &words, ' '))
        if (pointer.len > 0)
            error = add_pointer(&ask->pointers, pointer, setting, text);
    source->count = ask->pointers.n - source->first;
    return error;
}

/* ---- settings -------------------------------------------------------------------------- */

static const struct hapax__ask_word common_words[] = {
    {"Idempotency-Key", HAPAX__ASK_KEY_HEADER, false},
    {"x-idempotency-key", HAPAX__ASK_KEY_HEADER, false},
    {"payload", HAPAX__ASK_PAYLOAD, true},
    {NULL, HAPAX__ASK_HEADER, false},
};

/* The word's entry; that of a header, where the word has none. */
static const struct hapax__ask_word *find_word(const struct hapax__ask_word *own,
                                               struct hapax_span word)
{
    while (own->word && !hapax__name_is(word, own->word))
        own++;
    if (own->word)
        return own;
    for (own = common_words; own->word && !hapax__name_is(word, own->word); own++)
        continue;
    return own;
}

static enum hapax_error read_source(struct hapax__ask *ask, struct hapax_span word,
                                    const struct hapax__ask_word *own, char text[HAPAX_TEXT_MAX])
{
    struct hapax__ask_source *source = &ask->sources[ask->source_count];

    if (word.len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has an empty source");
    if (ask->source_count == HAPAX__ASK_SOURCES_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has over %u sources",
                           HAPAX__ASK_SOURCES_MAX);
    if (ask->source_count > 0 && find_word(own, source[-1].name)->always)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "key has a source behind %.*s, which is never missing",
                           (int)source[-1].name.len, (const char *)source[-1].name.ptr);
    ask->source_count++;
    if (word.ptr[0] == '/')
        return read_pointers(ask, source, word, "key", text);
    source->name = word;
    source->kind = find_word(own, word)->kind;
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_key(struct hapax__ask *ask, const struct hapax__ask_settings *settings,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(settings->key);
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;

    while (error == HAPAX_ERR_NONE && take_word(&word, &rest, ','))
        error = read_source(ask, word, settings->words, text);
    return error;
}

/* A pointer of the fingerprint, with + or - before it or neither. */
static bool is_selection(struct hapax_span word)
{
    return word.ptr[0] == '/' || (word.len > 1 && strchr("+-", word.ptr[0]) && word.ptr[1] == '/');
}

static enum hapax_error read_selection(struct hapax__ask *ask, struct hapax_span word,
                                       char text[HAPAX_TEXT_MAX])
{
    enum hapax__json_select select = word.ptr[0] == '-' ? HAPAX__JSON_EXCLUDE : HAPAX__JSON_INCLUDE;

    if (word.ptr[0] != '/') {
        word.ptr++;
        word.len--;
    }
    if (ask->selected.n > 0 && ask->select != select)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "fingerprint takes pointers with + or with -, not both");
    ask->select = select;
    return add_pointer(&ask->selected, word, "fingerprint", text);
}

static enum hapax_error read_part(struct hapax__ask *ask, struct hapax_span word, bool has_line,
                                  char text[HAPAX_TEXT_MAX])
{
    enum hapax__ask_counts counts = HAPAX__ASK_JSON;
    enum hapax_error error = HAPAX_ERR_NONE;

    if (has_line && hapax__name_is(word, "method")) {
        ask->method = true;
        return HAPAX_ERR_NONE;
    }
    if (has_line && hapax__name_is(word, "uri")) {
        ask->uri = true;
        return HAPAX_ERR_NONE;
    }
    if (is_selection(word))
        error = read_selection(ask, word, text);
    else if (hapax__name_is(word, "body"))
        counts = HAPAX__ASK_BYTES;
    else if (hapax__name_is(word, "off"))
        counts = HAPAX__ASK_OFF;
    else if (!hapax__name_is(word, "json"))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "fingerprint has \"%.*s\", and takes %sbody, json, "
                           "+/POINTER, -/POINTER, or off",
                           word.len < 64 ? (int)word.len : 64, (const char *)word.ptr,
                           has_line ? "method, uri, " : "");
    if (error == HAPAX_ERR_NONE && ask->counts && ask->counts != counts)
        return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint takes body, JSON, or off");
    ask->counts = counts;
    return error;
}

enum hapax_error hapax__ask_read_fingerprint(struct hapax__ask *ask, const char *setting,
                                             bool may_have_line, char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(setting);
    enum hapax_error error = HAPAX_ERR_NONE;
    bool has_line;
    struct hapax_span word;

    ask->select = HAPAX__JSON_INCLUDE;
    while (error == HAPAX_ERR_NONE && take_word(&word, &rest, ' '))
        if (word.len > 0)
            error = read_part(ask, word, may_have_line, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    has_line = ask->method || ask->uri;
    if (has_line && ask->counts == HAPAX__ASK_OFF)
        return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint takes nothing beside off");
    if (!has_line && !ask->counts)
        return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint is empty");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_names(struct hapax__ask *ask,
                                   const struct hapax__ask_settings *settings,
                                   char text[HAPAX_TEXT_MAX])
{
    ask->scope = hapax_str(settings->scope);
    ask->step = hapax_str(settings->step);
    if (ask->scope.len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope is empty");
    if (ask->scope.len > HAPAX_SCOPE_MAX)
        return hapax__fail(
            text, HAPAX_ERR_INVALID, "scope of %zu bytes is over %u%s", ask->scope.len,
            HAPAX_SCOPE_MAX,
            settings->scope_is_default ? ": it is what messages come from, set another" : "");
    if (!settings->step)
        return HAPAX_ERR_NONE;
    if (ask->step.len == 0 || ask->step.len > HAPAX_STEP_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "step of %zu bytes is not 1 to %u",
                           ask->step.len, HAPAX_STEP_MAX);
    if (ask->step.ptr[0] == '.' || memchr(ask->step.ptr, ':', ask->step.len))
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%s\" %s", settings->step,
                           ask->step.ptr[0] == '.' ? "begins with a '.'" : "holds a ':'");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_who(struct hapax__ask *ask, struct hapax__ask_source *source,
                                 const char *setting, const char *value, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;

    if (value)
        error = read_pointers(ask, source, hapax_str(value), setting, text);
    if (error == HAPAX_ERR_NONE && value && source->count == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s is empty", setting);
    return error;
}

static enum hapax_error read_owner(struct hapax__ask *ask,
                                   const struct hapax__ask_settings *settings,
                                   char text[HAPAX_TEXT_MAX])
{
    const char *value = settings->owner;

    if (!settings->owner_in_header || !value || value[strspn(value, " ")] == '/' || !*value)
        return read_who(ask, &ask->owner, "owner", value, text);
    ask->owner = (struct hapax__ask_source){.kind = HAPAX__ASK_HEADER, .name = hapax_str(value)};
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__ask_read(struct hapax__ask *ask, const struct hapax__ask_settings *settings,
                                 char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span nobody = {NULL, 0};
    enum hapax_error error;

    memset(ask, 0, sizeof(*ask));
    hapax_digest(&ask->nobody, &nobody, 1);
    error = read_names(ask, settings, text);
    if (error == HAPAX_ERR_NONE)
        error = read_key(ask, settings, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__ask_read_fingerprint(ask, settings->fingerprint, settings->has_line, text);
    if (error == HAPAX_ERR_NONE)
        error = read_owner(ask, settings, text);
    ask->one_caller = settings->caller && strcmp(settings->caller, "none") == 0;
    if (error == HAPAX_ERR_NONE && !ask->one_caller)
        error = read_who(ask, &ask->caller, "caller", settings->caller, text);
    return error;
}

/* ---- bodies ---------------------------------------------------------------------------- */

/* False: out of memory. */
static bool digest_body(struct hapax__ask_view *view)
{
    const struct hapax__ask *ask = view->ask;
    struct hapax_span body = view->body;

    if (view->digested)
        return true;
    if (ask->counts != HAPAX__ASK_JSON && !view->body_is_json)
        SHA256(body.len > 0 ? body.ptr : (const uint8_t *)"", body.len, view->digest.bytes);
    else if (hapax__json_fingerprint(&view->digest, body, ask->select, ask->selected.at,
                                     ask->selected.n) == HAPAX__JSON_NOMEM)
        return false;
    view->digested = true;
    return true;
}

bool hapax__ask_fingerprint(struct hapax_digest *out, struct hapax__ask_view *view,
                            const struct hapax_span *parts, size_t n)
{
    struct hapax_span all[HAPAX__ASK_PARTS_MAX + 1];

    assert(n <= HAPAX__ASK_PARTS_MAX);
    for (size_t i = 0; i < n; i++)
        all[i] = parts[i];
    if (view->ask->counts == HAPAX__ASK_BYTES || view->ask->counts == HAPAX__ASK_JSON) {
        if (!digest_body(view))
            return false;
        all[n++] = (struct hapax_span){view->digest.bytes, sizeof(view->digest.bytes)};
    }
    hapax_digest(out, all, n);
    return true;
}

/* ---- keys ------------------------------------------------------------------------------ */

/* What one pointer finds. */
static enum hapax__found find_scalar(struct hapax__ask_view *view, uint8_t out[HAPAX_KEY_MAX],
                                     size_t *len, struct hapax_span pointer)
{
    struct hapax_span document = view->body;
    enum hapax__found found = view->enter ? view->enter(view, &document, &pointer) : HAPAX__FOUND;

    *len = 0;
    if (found != HAPAX__FOUND)
        return found;
    switch (hapax__json_scalar(out, HAPAX_KEY_MAX, len, document, pointer)) {
    case HAPAX__JSON_OK:
        return *len > 0 ? HAPAX__FOUND : hapax__found_bad(view, "what its pointer finds is empty");
    case HAPAX__JSON_NOMEM:
        return HAPAX__FOUND_NOMEM;
    case HAPAX__JSON_NOT_SCALAR:
        return hapax__found_bad(view, "what its pointer finds is no scalar");
    case HAPAX__JSON_TOO_LONG:
        return hapax__found_bad(view, "what its pointer finds is over 255 bytes");
    case HAPAX__JSON_NOT_CANONICAL:
    case HAPAX__JSON_ABSENT:
        break;
    }
    return HAPAX__FOUND_NOTHING;
}

/* As the HTTP door's hapax_key_from. One pointer: what it finds. Several: a digest of what they
 * find; all must find something. */
static enum hapax__found find_pointed(struct hapax__ask_view *view,
                                      const struct hapax__ask_source *source,
                                      uint8_t key[HAPAX_KEY_MAX], size_t *key_len)
{
    uint8_t values[HAPAX__JSON_POINTERS_MAX][HAPAX_KEY_MAX];
    struct hapax_span parts[HAPAX__JSON_POINTERS_MAX];
    struct hapax_digest digest;

    assert(source->count > 0 && source->count <= HAPAX__JSON_POINTERS_MAX);
    for (size_t i = 0; i < source->count; i++) {
        enum hapax__found found =
            find_scalar(view, values[i], &parts[i].len, view->ask->pointers.at[source->first + i]);

        if (found != HAPAX__FOUND)
            return found;
        parts[i].ptr = values[i];
    }
    if (source->count == 1) {
        *key_len = hapax__key_of_bytes(key, parts[0]);
    } else {
        hapax_digest(&digest, parts, source->count);
        *key_len = hapax__key_of_digest(key, digest.bytes);
    }
    return HAPAX__FOUND;
}

static enum hapax__found find_key(struct hapax__ask_view *view,
                                  const struct hapax__ask_source *source,
                                  uint8_t key[HAPAX_KEY_MAX], size_t *len)
{
    struct hapax_span value;
    enum hapax__found found;

    if (source->kind == HAPAX__ASK_POINTERS)
        return find_pointed(view, source, key, len);
    if (source->kind == HAPAX__ASK_PAYLOAD) {
        if (!digest_body(view))
            return HAPAX__FOUND_NOMEM;
        *len = hapax__key_of_digest(key, view->digest.bytes);
        return HAPAX__FOUND;
    }
    found = view->find(view, source, &value);
    if (found != HAPAX__FOUND)
        return found;
    if (source->kind == HAPAX__ASK_KEY_HEADER)
        return hapax_key_parse(key, len, value, &view->why) == HAPAX_ERR_NONE ? HAPAX__FOUND
                                                                              : HAPAX__FOUND_BAD;
    *len = hapax__key_of_bytes(key, value);
    return *len > 0 ? HAPAX__FOUND : hapax__found_bad(view, "the key is empty");
}

enum hapax__found hapax__ask_key(struct hapax__asked *out, struct hapax__ask_view *view)
{
    const struct hapax__ask *ask = view->ask;
    enum hapax__found found = HAPAX__FOUND_NOTHING;
    enum hapax_error error = HAPAX_ERR_NONE;
    uint8_t key[HAPAX_KEY_MAX];
    size_t len = 0;

    for (size_t i = 0; i < ask->source_count && found == HAPAX__FOUND_NOTHING; i++)
        found = find_key(view, &ask->sources[i], key, &len);
    if (found == HAPAX__FOUND_BAD) {
        out->refused = HAPAX_ANSWER_BAD_KEY;
        out->why = view->why;
    }
    if (found != HAPAX__FOUND)
        return found;
    assert(len > 0 && len <= sizeof(key));
    out->key_len = (uint8_t)len;
    /* With `step` the request carries the key of the operation that it is a part of. */
    if (ask->step.len > 0)
        error = hapax_key_derive(out->memory, &len, (struct hapax_span){key, len}, ask->step);
    else
        memcpy(out->memory, key, len);
    assert(error == HAPAX_ERR_NONE);
    out->request.key = (struct hapax_span){out->memory, len};
    return HAPAX__FOUND;
}

/* ---- owners and callers ---------------------------------------------------------------- */

/* What the pointers, or the header, of one setting find. */
static enum hapax__found find_named(struct hapax__asked *out, struct hapax__ask_view *view,
                                    const struct hapax__ask_source *source,
                                    uint8_t bytes[HAPAX_KEY_MAX], struct hapax_span *value)
{
    enum hapax__found found = find_key(view, source, bytes, &value->len);

    value->ptr = bytes;
    if (source->kind == HAPAX__ASK_HEADER &&
        (found == HAPAX__FOUND_NOTHING || found == HAPAX__FOUND_BAD))
        found = hapax__found_bad(view, "the header of its owner is missing, twice there, or empty");
    if (found == HAPAX__FOUND_NOTHING)
        found = hapax__found_bad(view, "its pointer finds nothing");
    if (found == HAPAX__FOUND_BAD) {
        out->refused = HAPAX_ANSWER_MISSING_OWNER;
        out->why = view->why;
        *value = (struct hapax_span){NULL, 0};
    }
    return found;
}

enum hapax__found hapax__ask_who(struct hapax__asked *out, struct hapax__ask_view *view)
{
    const struct hapax__ask *ask = view->ask;
    enum hapax__found found = HAPAX__FOUND;
    uint8_t bytes[HAPAX_KEY_MAX];
    struct hapax_span caller;

    _Static_assert(sizeof(out->owner) == HAPAX_KEY_MAX, "an owner is found as a key is");
    out->request.caller = ask->nobody;
    if (ask->owner.kind)
        found = find_named(out, view, &ask->owner, out->owner, &out->request.owner);
    if (found == HAPAX__FOUND && ask->caller.kind) {
        found = find_named(out, view, &ask->caller, bytes, &caller);
        if (found == HAPAX__FOUND)
            hapax_digest(&out->request.caller, &caller, 1);
    }
    return found;
}
