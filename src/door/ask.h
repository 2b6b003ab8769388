/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request asks: its key, from the first source of a list that has one, and its fingerprint.
 * The settings `key`, `fingerprint`, `scope` and `step` are read once. A door shows each request
 * by callbacks: the message door a message, the Lambda door an event or a record of a batch.
 *
 * The invariant: a request gives one key, whichever door reads the request and however often the
 * request comes. So the grammar of the key header, pointers and fingerprints are those of the HTTP
 * door. A source that contradicts itself, or cannot be read, is BAD_KEY and never "the next
 * source": the next delivery could have the key of another source, and be another operation.
 * A value longer than a key is hashed and never cut.
 *
 * All functions are safe from any number of threads.
 */
#ifndef HAPAX_DOOR_ASK_H
#define HAPAX_DOOR_ASK_H

#include "json/json.h"
#include <hapax/store.h>

#define HAPAX__ASK_SOURCES_MAX 16u
#define HAPAX__ASK_PARTS_MAX   20u /* of a fingerprint, the body apart */

/* ---- settings -------------------------------------------------------------------------- */

/* Where a key is looked for. A door numbers the sources of its own from HAPAX__ASK_OWN on. */
enum hapax__ask_kind {
    HAPAX__ASK_HEADER = 1,
    HAPAX__ASK_KEY_HEADER, /* read as the HTTP door reads Idempotency-Key */
    HAPAX__ASK_POINTERS,
    HAPAX__ASK_PAYLOAD, /* the digest of the body */
    HAPAX__ASK_OWN
};

struct hapax__ask_source {
    int kind;
    struct hapax_span name; /* the word in the setting */
    size_t first, count; /* of the ask's pointers */
};

/* JSON Pointers of one setting. */
struct hapax__ask_pointers {
    struct hapax_span at[HAPAX__JSON_POINTERS_MAX];
    size_t n;
};

/* What counts of a body. */
enum hapax__ask_counts { HAPAX__ASK_BYTES = 1, HAPAX__ASK_JSON, HAPAX__ASK_OFF };

/* The settings, read. */
struct hapax__ask {
    struct hapax__ask_source sources[HAPAX__ASK_SOURCES_MAX];
    size_t source_count;
    struct hapax__ask_pointers pointers;
    bool method, uri; /* these count for the fingerprint, if the request has them */
    enum hapax__ask_counts counts; /* 0: as OFF */
    enum hapax__json_select select;
    struct hapax__ask_pointers selected;
    struct hapax_span scope;
    struct hapax_span step; /* empty: none */
    /* Where the owner and the caller stand; a kind of 0: the setting names none. */
    struct hapax__ask_source owner, caller;
    bool one_caller; /* the setting is `none`: all requests are one caller's */
    struct hapax_digest nobody; /* the caller of a request without credentials */
};

/* What hapax__ask_read() reads, and by which rules. */
struct hapax__ask_settings {
    const char *key, *fingerprint; /* or the door's defaults; not NULL */
    const char *scope; /* not NULL */
    const char *step; /* NULL: none */
    const char *owner, *caller; /* JSON Pointers; NULL: none */
    bool owner_in_header; /* the owner may be the name of a header, too */
    bool scope_is_default; /* the caller set no scope, and might have to */
    bool has_line; /* requests have a method and a URI */
    /* The words of the door's own sources, ended by a NULL. */
    const struct hapax__ask_word {
        const char *word;
        int kind;
        bool always; /* every request has this source: no other may follow */
    } * words;
};

/* Reads the settings into *ask, whose spans point into them: they must outlive *ask. INVALID: text
 * names the setting. */
HAPAX__SHARED enum hapax_error hapax__ask_read(struct hapax__ask *ask,
                                               const struct hapax__ask_settings *settings,
                                               char text[HAPAX_TEXT_MAX]);

/* Reads the setting `fingerprint` alone into *ask, which is zeroed. may_have_line: as has_line. */
enum hapax_error hapax__ask_read_fingerprint(struct hapax__ask *ask, const char *setting,
                                             bool may_have_line, char text[HAPAX_TEXT_MAX]);

/* ---- requests -------------------------------------------------------------------------- */

enum hapax__found {
    HAPAX__FOUND_NOTHING = 0,
    HAPAX__FOUND,
    HAPAX__FOUND_BAD, /* the source is there, and is no key: `why` of the view is set */
    HAPAX__FOUND_NOMEM
};

/* One request, as its door shows it. The door sets `ask`, `body` and the callbacks. A door's own
 * struct has its view for first member, so that a callback finds the request. */
struct hapax__ask_view {
    const struct hapax__ask *ask;
    struct hapax_span body;
    /* The body is a JSON value out of a document, and not bytes: it always counts as JSON. */
    bool body_is_json;
    const char *why; /* static; BAD */

    /* Gives the bytes of a header, or of a source of the door's own, in *value. They must stay
     * until hapax__ask_key() returns. */
    enum hapax__found (*find)(struct hapax__ask_view *view, const struct hapax__ask_source *source,
                              struct hapax_span *value);
    /* Gives the document that a pointer of the key is about, and in *pointer what is left to follow
     * there. NULL: the body is the document. */
    enum hapax__found (*enter)(struct hapax__ask_view *view, struct hapax_span *document,
                               struct hapax_span *pointer);

    /* Of ask.c: the body's digest, once it was needed. */
    bool digested;
    struct hapax_digest digest;
};

/* What a request asks. Spans point into `memory`, the ask or the request. Do not copy it. */
struct hapax__asked {
    /* 0; or MISSING_KEY, BAD_KEY, MISSING_OWNER, TOO_LARGE: there is no operation to ask for. */
    enum hapax_answer_kind refused;
    const char *why; /* refused: what is wrong; static, and without the key */
    struct hapax_request request; /* its key is empty where there is none */
    uint8_t key_len; /* of the key as it came, without a step: what `key_min` measures */
    bool by_position; /* of a message: the key is its position, which no client chose */
    uint8_t memory[HAPAX_KEY_MAX];
    uint8_t owner[HAPAX_OWNER_MAX];
    uint8_t what[HAPAX_WHAT_MAX];
};

/* Says why a source is no key; returns BAD. */
static inline enum hapax__found hapax__found_bad(struct hapax__ask_view *view, const char *why)
{
    view->why = why;
    return HAPAX__FOUND_BAD;
}

/* Finds the key. FOUND: it is in out->request. BAD: out is refused as BAD_KEY, with the reason.
 * NOTHING: no source is there, and out is as it was. NOMEM: ask again. */
HAPAX__SHARED enum hapax__found hapax__ask_key(struct hapax__asked *out,
                                               struct hapax__ask_view *view);

/* Finds whose key it is, and who asks, where the settings name them. To be called once there is a
 * key. FOUND: they are in out->request; a caller that the settings do not name is nobody. BAD: out
 * is refused as MISSING_OWNER, with the reason: one that is named is not there. NOMEM: ask again.
 */
HAPAX__SHARED enum hapax__found hapax__ask_who(struct hapax__asked *out,
                                               struct hapax__ask_view *view);

/* Gives the fingerprint: of the parts that stand before the body (method, URI), at most
 * HAPAX__ASK_PARTS_MAX, then of what counts of the body, by itself. That is the HTTP door's
 * fingerprint under the same setting. False: out of memory. */
HAPAX__SHARED bool hapax__ask_fingerprint(struct hapax_digest *out, struct hapax__ask_view *view,
                                          const struct hapax_span *parts, size_t n);

#endif
