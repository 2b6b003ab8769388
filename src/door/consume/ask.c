/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message asks: its key, from the first source of a list that has one, and its fingerprint.
 *
 * What it keeps: one message gives one key, whoever reads it and however often it is delivered. A source that
 * contradicts itself or cannot be read is BAD_KEY and never "the next source": with another source the
 * next delivery, or the message that the producer sends again, would be another operation. What is longer than a
 * key may be is hashed and never cut, and what is joined is joined so that it can be taken apart in one way only.
 * Where the HTTP door has a rule (the header's grammar, pointers, fingerprints), it is the same here, so that an
 * operation may come in by either.
 *
 * Rejected: the broker's position as the last resort of the default list. It makes every message have a key,
 * and takes what a producer sends twice for two operations: who wants that says so.
 */
#include "event.h"
#include "parts.h"

#include "base/bytes.h"
#include "base/fail.h"
#include "core/key.h"
#include "door/setting.h"
#include "json/json.h"

#include <assert.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char usual_sources[] =
    "Idempotency-Key,x-idempotency-key,x-deduplication-header,Nats-Msg-Id,MessageDeduplicationId,"
    "cloudevents,NServiceBus.MessageId,message-id,id,_watermill_message_uuid";

enum source_kind {
    OF_HEADER = 1,
    OF_KEY_HEADER, /* whose value is read as the HTTP door reads it */
    OF_EVENT,
    OF_MESSAGE_ID,
    OF_POINTERS,
    OF_PAYLOAD,
    OF_POSITION
};

struct key_source {
    enum source_kind kind;
    struct hapax_span name;
    size_t first, count; /* of ask.pointers */
};

enum counts { COUNTS_BYTES = 1, COUNTS_JSON, COUNTS_NOTHING };

struct hapax__ask {
    struct key_source sources[HAPAX_KEY_SOURCES_MAX];
    size_t source_count;
    struct hapax__pointers pointers;
    enum counts counts;
    enum hapax__json_select select;
    struct hapax__pointers selected;
    struct hapax_span scope;
    struct hapax_span step;
    struct hapax_digest caller;
};

/* ---- the settings ---------------------------------------------------------------------- */

static enum hapax_error read_pointers(struct hapax__ask *ask, struct key_source *source,
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
    static const struct {
        const char *word;
        enum source_kind kind;
    } kinds[] = {
        {"Idempotency-Key", OF_KEY_HEADER},
        {"x-idempotency-key", OF_KEY_HEADER},
        {"cloudevents", OF_EVENT},
        {"message-id", OF_MESSAGE_ID},
        {"payload", OF_PAYLOAD},
        {"position", OF_POSITION},
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (hapax__name_is(word, kinds[i].word))
            return kinds[i].kind;
    }
    return OF_HEADER;
}

static bool always_finds(const struct key_source *source)
{
    return source->kind == OF_PAYLOAD || source->kind == OF_POSITION;
}

static enum hapax_error read_source(struct hapax__ask *ask, struct hapax_span word,
                                    const struct hapax__source *from, char text[HAPAX_TEXT_MAX])
{
    struct key_source *source = &ask->sources[ask->source_count];

    if (word.len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has an empty source");
    if (ask->source_count == HAPAX_KEY_SOURCES_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "key has over %u sources",
                           HAPAX_KEY_SOURCES_MAX);
    if (ask->source_count > 0 && always_finds(source - 1))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "key has a source behind payload or position, which every message has");
    ask->source_count++;
    if (word.ptr[0] == '/')
        return read_pointers(ask, source, word, text);
    source->kind = kind_of(word);
    source->name = word;
    if (source->kind == OF_POSITION && !from->type->positions)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "key is position, and messages of \"%s\" have none",
                           from->type->schemes[0]);
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_key(struct hapax__ask *ask, const char *setting,
                                 const struct hapax__source *from, char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(setting ? setting : usual_sources);
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;

    while (error == HAPAX_ERR_NONE && hapax__setting_word(&word, &rest, ','))
        error = read_source(ask, word, from, text);
    return error;
}

static enum hapax_error read_fingerprint(struct hapax__ask *ask, const char *setting,
                                         char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = hapax_str(setting ? setting : "body");
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_span word;

    while (error == HAPAX_ERR_NONE && hapax__setting_word(&word, &rest, ' ')) {
        enum counts counts = COUNTS_JSON;

        if (word.len == 0)
            continue;
        if (hapax__setting_selects(word))
            error = hapax__setting_select(&ask->selected, &ask->select, word, text);
        else if (hapax__name_is(word, "body"))
            counts = COUNTS_BYTES;
        else if (hapax__name_is(word, "off"))
            counts = COUNTS_NOTHING;
        else if (!hapax__name_is(word, "json"))
            return hapax__fail(text, HAPAX_ERR_INVALID,
                               "fingerprint has \"%.*s\", and takes body, json, "
                               "+/POINTER, -/POINTER, or off",
                               word.len < 64 ? (int)word.len : 64, (const char *)word.ptr);
        if (error == HAPAX_ERR_NONE && ask->counts && ask->counts != counts)
            return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint takes body, JSON, or off");
        ask->counts = counts;
    }
    if (error == HAPAX_ERR_NONE && !ask->counts)
        return hapax__fail(text, HAPAX_ERR_INVALID, "fingerprint is empty");
    return error;
}

static enum hapax_error read_names(struct hapax__ask *ask, const struct hapax_consumer *consumer,
                                   const struct hapax__source *from, char text[HAPAX_TEXT_MAX])
{
    ask->scope = hapax_str(consumer->scope ? consumer->scope : from->group);
    ask->step = hapax_str(consumer->step);
    if (ask->scope.len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope is empty");
    if (ask->scope.len > HAPAX_SCOPE_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "scope of %zu bytes is over %u%s",
                           ask->scope.len, HAPAX_SCOPE_MAX,
                           consumer->scope ? "" : ": it is what messages come from, set another");
    if (!consumer->step)
        return HAPAX_ERR_NONE;
    if (ask->step.len == 0 || ask->step.len > HAPAX_STEP_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "step of %zu bytes is not 1 to %u",
                           ask->step.len, HAPAX_STEP_MAX);
    if (ask->step.ptr[0] == '.' || memchr(ask->step.ptr, ':', ask->step.len))
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%s\" %s", consumer->step,
                           ask->step.ptr[0] == '.' ? "begins with a '.'" : "holds a ':'");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__ask_open(struct hapax__ask **out, const struct hapax_consumer *consumer,
                                 const struct hapax__source *source, char text[HAPAX_TEXT_MAX])
{
    struct hapax__ask *ask = calloc(1, sizeof(*ask));
    const struct hapax_span nobody = {NULL, 0};
    enum hapax_error error;

    *out = NULL;
    if (!ask)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read the settings: out of memory");
    ask->select = HAPAX__JSON_INCLUDE;
    hapax_digest(&ask->caller, &nobody, 1);
    error = read_names(ask, consumer, source, text);
    if (error == HAPAX_ERR_NONE)
        error = read_key(ask, consumer->key, source, text);
    if (error == HAPAX_ERR_NONE)
        error = read_fingerprint(ask, consumer->fingerprint, text);
    if (error != HAPAX_ERR_NONE) {
        free(ask);
        return error;
    }
    *out = ask;
    return HAPAX_ERR_NONE;
}

void hapax__ask_close(struct hapax__ask *ask)
{
    free(ask);
}

/* ---- keys ------------------------------------------------------------------------------ */

/* Where a key is looked for. */
struct search {
    const struct hapax__ask *ask;
    const struct hapax_message *message;
    const struct hapax__delivered *delivered; /* the message's */
    const struct hapax_digest *payload;
    const char *why; /* BAD */
    size_t len;
    uint8_t key[HAPAX_KEY_MAX];
};

enum found { NOTHING = 0, FOUND, BAD, NOMEM };

static enum found bad(struct search *search, const char *why)
{
    search->why = why;
    return BAD;
}

static enum found found_digest(struct search *search, const uint8_t digest[SHA256_DIGEST_LENGTH])
{
    search->len = hapax__key_of_digest(search->key, digest);
    return FOUND;
}

/* Bytes as they stand. */
static enum found found_bytes(struct search *search, struct hapax_span bytes)
{
    search->len = hapax__key_of_bytes(search->key, bytes);
    return search->len > 0 ? FOUND : bad(search, "the key is empty");
}

/* One more value that a name has; the first stands. */
static enum found agree(struct search *search, struct hapax_span *value, enum found so_far,
                        struct hapax_span more)
{
    if (so_far != FOUND)
        *value = more;
    else if (!hapax__same(*value, more))
        return bad(search, "the message names its key twice, and not alike");
    return FOUND;
}

static bool same_name(struct hapax_span name, struct hapax_span other)
{
    return other.len == name.len && name.len > 0 &&
           strncasecmp((const char *)other.ptr, (const char *)name.ptr, name.len) == 0;
}

/* A header that is there, and holds a table or the like. */
static enum found bad_type(struct search *search)
{
    return bad(search, "the header of the key holds no text");
}

static enum found find_header(struct search *search, struct hapax_span *value,
                              struct hapax_span name)
{
    const struct hapax__delivered *delivered = search->delivered;
    const struct hapax_message *message = search->message;
    enum found found = NOTHING;

    for (size_t i = 0; i < delivered->unread_count; i++)
        if (same_name(name, delivered->unread[i]))
            return bad_type(search);
    for (size_t i = 0; i < message->header_count && found != BAD; i++)
        if (same_name(name, message->headers[i].name))
            found = agree(search, value, found, message->headers[i].value);
    return found;
}

static enum found find_message_id(struct search *search, struct hapax_span name)
{
    struct hapax_span value;
    enum found found = find_header(search, &value, name);

    if (found != BAD && search->message->id.len > 0)
        found = agree(search, &value, found, search->message->id);
    return found == FOUND ? found_bytes(search, value) : found;
}

static enum found find_parsed(struct search *search, struct hapax_span name)
{
    struct hapax_span value;
    enum found found = find_header(search, &value, name);

    if (found != FOUND)
        return found;
    if (hapax_key_parse(search->key, &search->len, value, &search->why) != HAPAX_ERR_NONE)
        return BAD;
    return FOUND;
}

/* ---- keys of CloudEvents ----------------------------------------------------------------- */

/* What an event is named by: an id says nothing without its source. */
enum name { SOURCE = 0, ID, NAMES };

struct event {
    bool there; /* at least one of them */
    struct hapax_span names[NAMES];
    uint8_t bytes[NAMES][HAPAX__EVENT_NAME_MAX];
};

static const char *const name_texts[NAMES] = {"source", "id"};
static const char *const name_pointers[NAMES] = {"/source", "/id"};

/* Half of a name, and one that is no name, is no reason to look for another. */
static enum found found_event(struct search *search, const struct event *event)
{
    if (!event->there)
        return NOTHING;
    if (hapax__key_of_event(search->key, &search->len, event->names[SOURCE], event->names[ID]) !=
        HAPAX_ERR_NONE)
        return bad(search, "source or id of the event is missing, empty, or over 4096 bytes");
    return FOUND;
}

static enum found find_attribute(struct search *search, struct event *event, enum name name)
{
    const struct hapax_message *message = search->message;
    const struct hapax__delivered *delivered = search->delivered;
    struct hapax_span attribute, *value = &event->names[name];
    uint8_t decoded[HAPAX__EVENT_NAME_MAX];
    enum found found = NOTHING;
    bool encoded;

    for (size_t i = 0; i < delivered->unread_count; i++)
        if (hapax__event_attribute(&attribute, &encoded, delivered->unread[i]) &&
            hapax__name_is(attribute, name_texts[name]))
            return bad_type(search);
    for (size_t i = 0; i < message->header_count && found != BAD; i++) {
        struct hapax_span more = message->headers[i].value;
        uint8_t *to = found == FOUND ? decoded : event->bytes[name];

        if (!hapax__event_attribute(&attribute, &encoded, message->headers[i].name) ||
            !hapax__name_is(attribute, name_texts[name]))
            continue;
        if (encoded) {
            if (!hapax__event_decode(to, HAPAX__EVENT_NAME_MAX, &more.len, more))
                return bad(search, "source or id of the event is over 4096 bytes");
            more.ptr = to;
        }
        found = agree(search, value, found, more);
    }
    return found;
}

static enum found find_member(struct search *search, struct event *event, enum name name)
{
    size_t len = 0;

    switch (hapax__json_scalar(event->bytes[name], HAPAX__EVENT_NAME_MAX, &len,
                               search->message->body, hapax_str(name_pointers[name]))) {
    case HAPAX__JSON_OK:
        event->names[name] = (struct hapax_span){event->bytes[name], len};
        return FOUND;
    case HAPAX__JSON_NOMEM:
        return NOMEM;
    case HAPAX__JSON_NOT_SCALAR:
    case HAPAX__JSON_TOO_LONG:
        return bad(search, "source or id of the event is no string of at most 4096 bytes");
    case HAPAX__JSON_NOT_CANONICAL:
    case HAPAX__JSON_ABSENT:
        break;
    }
    return NOTHING;
}

static enum found find_event(struct search *search)
{
    bool structured = hapax__event_structured(search->message->content_type, true);
    struct event event = {.there = false};

    for (enum name name = SOURCE; name < NAMES; name++) {
        enum found found =
            structured ? find_member(search, &event, name) : find_attribute(search, &event, name);

        if (found == BAD || found == NOMEM)
            return found;
        event.there = event.there || found == FOUND;
    }
    return found_event(search, &event);
}

/* ---- keys of the payload ------------------------------------------------------------------- */

/* As the HTTP door's hapax_key_from: one pointer: what it finds; several: a digest of what they find. */
static enum found find_pointed(struct search *search, const struct key_source *source)
{
    uint8_t values[HAPAX__JSON_POINTERS_MAX][HAPAX_KEY_MAX];
    struct hapax_span parts[HAPAX__JSON_POINTERS_MAX];
    struct hapax_digest digest;

    assert(source->count > 0 && source->count <= HAPAX__JSON_POINTERS_MAX);
    for (size_t i = 0; i < source->count; i++) {
        size_t len = 0;

        switch (hapax__json_scalar(values[i], HAPAX_KEY_MAX, &len, search->message->body,
                                   search->ask->pointers.at[source->first + i])) {
        case HAPAX__JSON_OK:
            break;
        case HAPAX__JSON_NOMEM:
            return NOMEM;
        case HAPAX__JSON_NOT_SCALAR:
            return bad(search, "what the body holds in its place is no scalar");
        case HAPAX__JSON_TOO_LONG:
            return bad(search, "what the body holds in its place is over 255 bytes");
        case HAPAX__JSON_NOT_CANONICAL:
        case HAPAX__JSON_ABSENT:
            return NOTHING;
        }
        if (len == 0)
            return bad(search, "what the body holds in its place is empty");
        parts[i] = (struct hapax_span){values[i], len};
    }
    if (source->count == 1)
        return found_bytes(search, parts[0]);
    hapax_digest(&digest, parts, source->count);
    return found_digest(search, digest.bytes);
}

/* A copy stands elsewhere than the message it was made of. */
static enum found find_position(struct search *search)
{
    struct hapax_span position;
    enum found found = find_header(search, &position, hapax_str(HAPAX__HEADER_POSITION));

    if (found == NOTHING && search->message->position.len > 0) {
        position = search->message->position;
        found = FOUND;
    }
    return found == FOUND ? found_bytes(search, position) : found;
}

static enum found find(struct search *search, const struct key_source *source)
{
    struct hapax_span value;
    enum found found;

    switch (source->kind) {
    case OF_KEY_HEADER:
        return find_parsed(search, source->name);
    case OF_EVENT:
        return find_event(search);
    case OF_MESSAGE_ID:
        return find_message_id(search, source->name);
    case OF_POINTERS:
        return find_pointed(search, source);
    case OF_PAYLOAD:
        return found_digest(search, search->payload->bytes);
    case OF_POSITION:
        return find_position(search);
    case OF_HEADER:
        break;
    }
    found = find_header(search, &value, source->name);
    return found == FOUND ? found_bytes(search, value) : found;
}

/* ---- asking ------------------------------------------------------------------------------ */

/* What counts of the body, by itself: the only part of the fingerprint, as of the HTTP door's where that is set
 * to `body`, or to the same JSON. */
static enum hapax_error digest_body(struct hapax_digest *out, const struct hapax__ask *ask,
                                    struct hapax_span body)
{
    if (ask->counts != COUNTS_JSON) {
        SHA256(body.len > 0 ? body.ptr : (const uint8_t *)"", body.len, out->bytes);
        return HAPAX_ERR_NONE;
    }
    if (hapax__json_fingerprint(out, body, ask->select, ask->selected.at, ask->selected.n) ==
        HAPAX__JSON_NOMEM)
        return HAPAX_ERR_NOMEM;
    return HAPAX_ERR_NONE;
}

static enum hapax_error refuse(struct hapax__asked *out, enum hapax_answer_kind kind,
                               const char *why)
{
    out->refused = kind;
    out->why = why;
    return HAPAX_ERR_NONE;
}

/* With `step` the message carries the key of the operation it is a part of. */
static void set_key(struct hapax__asked *out, const struct hapax__ask *ask,
                    const struct search *search)
{
    size_t len = search->len;
    enum hapax_error error = HAPAX_ERR_NONE;

    assert(len > 0 && len <= sizeof(out->memory));
    if (ask->step.len > 0)
        error = hapax_key_derive(out->memory, &len, (struct hapax_span){search->key, search->len},
                                 ask->step);
    else
        memcpy(out->memory, search->key, len);
    assert(error == HAPAX_ERR_NONE);
    out->request.key = (struct hapax_span){out->memory, len};
}

enum hapax_error hapax__ask(struct hapax__asked *out, const struct hapax__ask *ask,
                            const struct hapax_policy *policy,
                            const struct hapax__delivered *delivered)
{
    const struct hapax_message *message = &delivered->message;
    struct hapax_digest payload;
    struct hapax_span part = {payload.bytes, sizeof(payload.bytes)};
    struct search search = {
        .ask = ask, .message = message, .delivered = delivered, .payload = &payload};
    enum found found = NOTHING;

    memset(out, 0, sizeof(*out));
    out->request.scope = ask->scope;
    out->request.caller = ask->caller;
    if (delivered->damaged)
        return refuse(out, HAPAX_ANSWER_TOO_LARGE,
                      "its headers cannot be read, or are over 256 or too large");
    if (message->header_count > HAPAX_MESSAGE_HEADERS_MAX)
        return refuse(out, HAPAX_ANSWER_TOO_LARGE, "it has over 256 headers");
    if (message->body.len > policy->max_request)
        return refuse(out, HAPAX_ANSWER_TOO_LARGE, "its body is over max_request");
    if (digest_body(&payload, ask, message->body) != HAPAX_ERR_NONE)
        return HAPAX_ERR_NOMEM;
    hapax_digest(&out->request.fingerprint, &part, ask->counts != COUNTS_NOTHING);
    for (size_t i = 0; i < ask->source_count && found == NOTHING; i++)
        found = find(&search, &ask->sources[i]);
    switch (found) {
    case FOUND:
        set_key(out, ask, &search);
        return HAPAX_ERR_NONE;
    case BAD:
        return refuse(out, HAPAX_ANSWER_BAD_KEY, search.why);
    case NOMEM:
        return HAPAX_ERR_NOMEM;
    case NOTHING:
        break;
    }
    return refuse(out, HAPAX_ANSWER_MISSING_KEY, "none of the sources of its key is there");
}
