/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message asks (door/ask.h), read from its headers, its properties and its body.
 *
 * Rejected: the broker's position as the last source of the default list. Every message would have
 * a key, and a message that its producer sends twice would be two operations. Whoever wants that
 * sets it.
 */
#include "ask.h"
#include "event.h"

#include "base/bytes.h"
#include "base/fail.h"
#include "broker/letter.h"
#include "core/key.h"

#include <string.h>
#include <strings.h>

_Static_assert(HAPAX__ASK_SOURCES_MAX == HAPAX_KEY_SOURCES_MAX, "the limit that consume.h names");

static const char usual_sources[] =
    "Idempotency-Key,x-idempotency-key,x-deduplication-header,Nats-Msg-Id,MessageDeduplicationId,"
    "cloudevents,NServiceBus.MessageId,message-id,id,_watermill_message_uuid";

enum { OF_EVENT = HAPAX__ASK_OWN, OF_MESSAGE_ID, OF_POSITION };

static const struct hapax__ask_word words[] = {
    {"cloudevents", OF_EVENT, false},
    {"message-id", OF_MESSAGE_ID, false},
    {"position", OF_POSITION, true},
    {NULL, 0, false},
};

enum hapax_error hapax__message_ask_read(struct hapax__ask *ask,
                                         const struct hapax_consumer *consumer,
                                         const struct hapax__source *source,
                                         char text[HAPAX_TEXT_MAX])
{
    const struct hapax__ask_settings settings = {
        .key = consumer->key ? consumer->key : usual_sources,
        .fingerprint = consumer->fingerprint ? consumer->fingerprint : "body",
        .scope = consumer->scope ? consumer->scope : source->group,
        .scope_is_default = !consumer->scope,
        .step = consumer->step,
        .owner = consumer->owner,
        .owner_in_header = true,
        .words = words,
    };
    enum hapax_error error = hapax__ask_read(ask, &settings, text);

    for (size_t i = 0; i < ask->source_count && error == HAPAX_ERR_NONE; i++)
        if (ask->sources[i].kind == OF_POSITION && !source->type->positions)
            error = hapax__fail(text, HAPAX_ERR_INVALID,
                                "key is position, and messages of \"%s\" have none",
                                source->type->schemes[0]);
    return error;
}

/* ---- headers --------------------------------------------------------------------------- */

/* A message that is asked. */
struct asking {
    struct hapax__ask_view view; /* first: callbacks are given this */
    const struct hapax__delivered *delivered;
    bool by_position;
    uint8_t event_key[HAPAX_KEY_MAX];
};

/* A name may be given twice: then both values must be equal. The first value stands. */
static enum hapax__found agree(struct asking *asking, struct hapax_span *value,
                               enum hapax__found so_far, struct hapax_span more)
{
    if (so_far != HAPAX__FOUND)
        *value = more;
    else if (!hapax__same(*value, more))
        return hapax__found_bad(&asking->view, "the message names its key twice, and not alike");
    return HAPAX__FOUND;
}

static bool same_name(struct hapax_span name, struct hapax_span other)
{
    return other.len == name.len && name.len > 0 &&
           strncasecmp((const char *)other.ptr, (const char *)name.ptr, name.len) == 0;
}

/* The header is there, and holds a table or the like. */
static enum hapax__found bad_type(struct asking *asking)
{
    return hapax__found_bad(&asking->view, "the header of the key holds no text");
}

static enum hapax__found find_header(struct asking *asking, struct hapax_span *value,
                                     struct hapax_span name)
{
    const struct hapax__delivered *delivered = asking->delivered;
    const struct hapax_message *message = &delivered->message;
    enum hapax__found found = HAPAX__FOUND_NOTHING;

    for (size_t i = 0; i < delivered->unread_count; i++)
        if (same_name(name, delivered->unread[i]))
            return bad_type(asking);
    for (size_t i = 0; i < message->header_count && found != HAPAX__FOUND_BAD; i++)
        if (same_name(name, message->headers[i].name))
            found = agree(asking, value, found, message->headers[i].value);
    return found;
}

/* ---- CloudEvents ------------------------------------------------------------------------- */

/* An event is named by its source and its id: an id says nothing without its source. */
enum name { SOURCE = 0, ID, NAMES };

struct event {
    struct hapax_span names[NAMES];
    uint8_t bytes[NAMES][HAPAX__EVENT_NAME_MAX];
    uint8_t again[HAPAX__EVENT_NAME_MAX]; /* a name given once more */
};

static const char *const name_texts[NAMES] = {"source", "id"};
static const char *const name_pointers[NAMES] = {"/source", "/id"};

static enum hapax__found find_attribute(struct asking *asking, struct event *event, enum name name)
{
    const struct hapax__delivered *delivered = asking->delivered;
    const struct hapax_message *message = &delivered->message;
    struct hapax_span attribute, *value = &event->names[name];
    enum hapax__found found = HAPAX__FOUND_NOTHING;
    bool encoded;

    for (size_t i = 0; i < delivered->unread_count; i++)
        if (hapax__event_attribute(&attribute, &encoded, delivered->unread[i]) &&
            hapax__name_is(attribute, name_texts[name]))
            return bad_type(asking);
    for (size_t i = 0; i < message->header_count && found != HAPAX__FOUND_BAD; i++) {
        struct hapax_span more = message->headers[i].value;
        uint8_t *to = found == HAPAX__FOUND ? event->again : event->bytes[name];

        if (!hapax__event_attribute(&attribute, &encoded, message->headers[i].name) ||
            !hapax__name_is(attribute, name_texts[name]))
            continue;
        if (encoded) {
            if (!hapax__event_decode(to, HAPAX__EVENT_NAME_MAX, &more.len, more))
                return hapax__found_bad(&asking->view,
                                        "source or id of the event is over 4096 bytes");
            more.ptr = to;
        }
        found = agree(asking, value, found, more);
    }
    return found;
}

static enum hapax__found find_member(struct asking *asking, struct event *event, enum name name)
{
    struct hapax_span *value = &event->names[name];

    value->ptr = event->bytes[name];
    switch (hapax__json_scalar(event->bytes[name], HAPAX__EVENT_NAME_MAX, &value->len,
                               asking->view.body, hapax_str(name_pointers[name]))) {
    case HAPAX__JSON_OK:
        return HAPAX__FOUND;
    case HAPAX__JSON_NOMEM:
        return HAPAX__FOUND_NOMEM;
    case HAPAX__JSON_NOT_SCALAR:
    case HAPAX__JSON_TOO_LONG:
        return hapax__found_bad(&asking->view,
                                "source or id of the event is no string of at most 4096 bytes");
    case HAPAX__JSON_NOT_CANONICAL:
    case HAPAX__JSON_ABSENT:
        break;
    }
    value->len = 0;
    return HAPAX__FOUND_NOTHING;
}

/* With half of a name, or a name that is malformed, no other source is tried. */
static enum hapax__found find_event(struct asking *asking, struct hapax_span *value)
{
    bool structured = hapax__event_structured(asking->delivered->message.content_type, true);
    bool there = false;
    struct event event;

    memset(event.names, 0, sizeof(event.names));
    for (enum name name = SOURCE; name < NAMES; name++) {
        enum hapax__found found =
            structured ? find_member(asking, &event, name) : find_attribute(asking, &event, name);

        if (found == HAPAX__FOUND_BAD || found == HAPAX__FOUND_NOMEM)
            return found;
        there = there || found == HAPAX__FOUND;
    }
    if (!there)
        return HAPAX__FOUND_NOTHING;
    value->ptr = asking->event_key;
    if (hapax__key_of_event(asking->event_key, &value->len, event.names[SOURCE], event.names[ID]) !=
        HAPAX_ERR_NONE)
        return hapax__found_bad(&asking->view,
                                "source or id of the event is missing, empty, or over 4096 bytes");
    return HAPAX__FOUND;
}

/* ---- asking ------------------------------------------------------------------------------ */

static enum hapax__found find(struct hapax__ask_view *view, const struct hapax__ask_source *source,
                              struct hapax_span *value)
{
    struct asking *asking = (struct asking *)view;
    const struct hapax_message *message = &asking->delivered->message;
    enum hapax__found found;

    switch (source->kind) {
    case OF_EVENT:
        return find_event(asking, value);
    case OF_MESSAGE_ID: /* the property, and a header by its name */
        found = find_header(asking, value, source->name);
        return found != HAPAX__FOUND_BAD && message->id.len > 0
                   ? agree(asking, value, found, message->id)
                   : found;
    case OF_POSITION: /* a copy stands elsewhere than the message that was copied */
        asking->by_position = true;
        found = find_header(asking, value, hapax_str(HAPAX__HEADER_POSITION));
        return found == HAPAX__FOUND_NOTHING && message->position.len > 0
                   ? agree(asking, value, found, message->position)
                   : found;
    default:
        return find_header(asking, value, source->name);
    }
}

/* The message's type: the property, or that of the event in its headers. */
static struct hapax_span type_of(const struct hapax_message *message)
{
    struct hapax_span type = message->type, attribute;
    bool encoded;

    for (size_t i = 0; i < message->header_count && type.len == 0; i++)
        if (hapax__event_attribute(&attribute, &encoded, message->headers[i].name) &&
            hapax__name_is(attribute, "type"))
            type = message->headers[i].value;
    return type;
}

/* The producer's traceparent; empty: none. */
static struct hapax_span trace_of(const struct hapax_message *message)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (hapax__name_is(message->headers[i].name, "traceparent"))
            return message->headers[i].value;
    return (struct hapax_span){NULL, 0};
}

static enum hapax_error refuse(struct hapax__asked *out, enum hapax_answer_kind kind,
                               const char *why)
{
    out->refused = kind;
    out->why = why;
    return HAPAX_ERR_NONE;
}

/* Whether the message was published with too many headers. A copy has more than that. So has each
 * message of Kafka with the order NONE: its position is a header. */
static bool has_many_headers(const struct hapax_message *message)
{
    if (message->header_count <= HAPAX_MESSAGE_HEADERS_MAX ||
        hapax__header_of(message, HAPAX__HEADER_BASE).ptr ||
        hapax__header_of(message, HAPAX__HEADER_REDRIVE).ptr)
        return false;
    return message->header_count > HAPAX_MESSAGE_HEADERS_MAX + 1 ||
           !hapax__header_of(message, HAPAX__HEADER_POSITION).ptr;
}

enum hapax_error hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                    const struct hapax_policy *policy,
                                    const struct hapax__delivered *delivered)
{
    const struct hapax_message *message = &delivered->message;
    const struct hapax_span what[] = {message->from, type_of(message)};
    struct asking asking = {
        .view = {.ask = ask, .body = message->body, .find = find},
        .delivered = delivered,
    };

    memset(out, 0, sizeof(*out));
    out->request.scope = ask->scope;
    out->request.caller = ask->nobody;
    out->request.what = (struct hapax_span){out->what, hapax_what(out->what, what, 2)};
    if (delivered->damaged)
        return refuse(out, HAPAX_ANSWER_TOO_LARGE, delivered->damaged);
    if (has_many_headers(message))
        return refuse(out, HAPAX_ANSWER_TOO_LARGE, HAPAX__HEADERS_MANY);
    if (message->body.len > policy->max_request)
        return refuse(out, HAPAX_ANSWER_TOO_LARGE, "its body is over max_request");
    out->request.trace = trace_of(message);
    if (!hapax__ask_fingerprint(&out->request.fingerprint, &asking.view, NULL, 0))
        return HAPAX_ERR_NOMEM;
    switch (hapax__ask_key(out, &asking.view)) {
    case HAPAX__FOUND_NOMEM:
        return HAPAX_ERR_NOMEM;
    case HAPAX__FOUND_NOTHING:
        return refuse(out, HAPAX_ANSWER_MISSING_KEY, "none of the sources of its key is there");
    case HAPAX__FOUND:
        out->by_position = asking.by_position;
        return hapax__ask_who(out, &asking.view) == HAPAX__FOUND_NOMEM ? HAPAX_ERR_NOMEM
                                                                       : HAPAX_ERR_NONE;
    default:
        return HAPAX_ERR_NONE;
    }
}
