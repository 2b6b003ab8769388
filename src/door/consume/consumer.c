/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer from its settings: their defaults and limits, and the opening of what the loop drives.
 * Invariant: hapax_consumer_run() refuses a consumer that hapax_consumer_check() has passed only
 * because of the store, the broker or memory. Both read the settings with the same function, which
 * puts in the defaults.
 */
#include "ask.h"
#include "loop.h"
#include "stats.h"

#include "base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NAME_MAX_BYTES 255u /* of a queue or topic, at any broker */
#define PAUSE_MAX_MS   (INT64_C(1000) * 86400)

void hapax_consumer_init(struct hapax_consumer *consumer)
{
    memset(consumer, 0, sizeof(*consumer));
    hapax_policy_init(&consumer->policy);
    consumer->policy.attempts_max = 8;
    consumer->policy.key = HAPAX_KEY_REQUIRED;
    consumer->no_key = HAPAX_NO_KEY_DEAD_LETTER;
    consumer->in_flight = HAPAX_IN_FLIGHT_DELAY;
    consumer->unknown = HAPAX_UNKNOWN_PARK;
    consumer->order = HAPAX_ORDER_DEFAULT;
    consumer->retry_min_ms = 1000;
    consumer->retry_max_ms = 300000;
    consumer->drain_ms = 30000;
    consumer->concurrency = 16;
    consumer->stop_fd = -1;
    consumer->hurry_fd = -1;
    consumer->ready_fd = -1;
}

/* ---- settings -------------------------------------------------------------------------- */

static enum hapax_error check_words(const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    const char *wrong = NULL;

    if (consumer->no_key < HAPAX_NO_KEY_DEAD_LETTER || consumer->no_key > HAPAX_NO_KEY_RUN)
        wrong = "no_key";
    else if (consumer->in_flight < HAPAX_IN_FLIGHT_DELAY ||
             consumer->in_flight > HAPAX_IN_FLIGHT_REQUEUE)
        wrong = "in_flight";
    else if (consumer->unknown < HAPAX_UNKNOWN_PARK ||
             consumer->unknown > HAPAX_UNKNOWN_DEAD_LETTER)
        wrong = "unknown";
    else if (consumer->order < HAPAX_ORDER_DEFAULT || consumer->order > HAPAX_ORDER_NONE)
        wrong = "order";
    if (wrong)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s is none of its values", wrong);
    if (consumer->in_flight == HAPAX_IN_FLIGHT_WAIT && consumer->policy.wait_ms == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "in_flight=wait needs a wait over 0");
    if (consumer->policy.on_failed == HAPAX_FAILED_REPLAY)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "on_failed=replay would acknowledge what failed");
    if (consumer->policy.owner_required && !consumer->owner)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "owner is missing, and owner_required is on, as profile=payments sets "
                           "it: name the header, or the pointer, that says whose key it is");
    return hapax_policy_check(&consumer->policy, text);
}

static enum hapax_error check_numbers(const struct hapax_consumer *consumer,
                                      char text[HAPAX_TEXT_MAX])
{
    if (consumer->concurrency == 0 || consumer->concurrency > HAPAX_CONCURRENCY_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "concurrency of %u is not 1 to %u",
                           consumer->concurrency, HAPAX_CONCURRENCY_MAX);
    if (consumer->in_hand_max > HAPAX_IN_HAND_MAX ||
        (consumer->in_hand_max > 0 && consumer->in_hand_max < consumer->concurrency))
        return hapax__fail(text, HAPAX_ERR_INVALID, "in_hand_max of %u is not %u to %u",
                           consumer->in_hand_max, consumer->concurrency, HAPAX_IN_HAND_MAX);
    if (consumer->retry_min_ms < 1 || consumer->retry_max_ms < consumer->retry_min_ms ||
        consumer->retry_max_ms > PAUSE_MAX_MS)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "retry of %lld to %lld ms is not within 1ms to 24h",
                           (long long)consumer->retry_min_ms, (long long)consumer->retry_max_ms);
    if (consumer->drain_ms < 0 || consumer->drain_ms > PAUSE_MAX_MS)
        return hapax__fail(text, HAPAX_ERR_INVALID, "drain of %lld ms is not 0 to 24h",
                           (long long)consumer->drain_ms);
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_type(const struct hapax_consumer *consumer,
                                   const struct hapax__source_type *type, char text[HAPAX_TEXT_MAX])
{
    if (consumer->no_key == HAPAX_NO_KEY_REJECT && !type->rejects)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "no_key=reject: this broker has no dead-lettering of its own");
    if (type->orders == HAPAX_ORDER_NONE && consumer->order != HAPAX_ORDER_DEFAULT &&
        consumer->order != HAPAX_ORDER_NONE)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED, "order: this broker has none to keep");
    if (consumer->in_flight == HAPAX_IN_FLIGHT_REQUEUE && consumer->order != HAPAX_ORDER_NONE &&
        type->orders != HAPAX_ORDER_NONE && !type->postpone)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "in_flight=requeue: those behind it in its order would overtake it");
    return HAPAX_ERR_NONE;
}

/* ---- what is opened ---------------------------------------------------------------------- */

struct opened {
    struct hapax_consumer consumer; /* with all defaults put in */
    struct hapax__loop_parts parts;
    struct hapax__ask ask;
    char *dead_letters, *parked; /* names that were made; NULL: they are given */
};

static void release(struct opened *opened)
{
    free(opened->dead_letters);
    free(opened->parked);
}

static void close_unused(struct opened *opened)
{
    if (opened->parts.sink)
        opened->parts.sink_type->close(opened->parts.sink);
    if (opened->parts.source)
        opened->parts.source_type->close(opened->parts.source, 0);
    release(opened);
}

/* Finds the name of a queue of letters: the given name, NAME.kind, or what this broker calls it. A
 * name that is made goes to *made, to be freed. */
static enum hapax_error letters_name(const char **to, char **made, const char *given,
                                     const struct hapax__loop_parts *parts, const char *what,
                                     const char *kind, char text[HAPAX_TEXT_MAX])
{
    const struct hapax__source *source = parts->source;
    /* The name of the topic itself. The source's name is TOPIC.GROUP. */
    const char *taken_from = parts->sink->name;
    size_t size = strlen(source->name) + strlen(kind) + 2;
    const char *why;

    *to = given;
    if (!given) {
        *made = malloc(size);
        if (!*made)
            return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
        if (source->type->name_letters)
            source->type->name_letters(source, *made, size, kind);
        else
            snprintf(*made, size, "%s.%s", source->name, kind);
        *to = *made;
    }
    if ((*to)[0] == '\0' || strlen(*to) > NAME_MAX_BYTES)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s is a name of %zu bytes, not 1 to %u", what,
                           strlen(*to), NAME_MAX_BYTES);
    if (strcmp(*to, source->name) == 0 || strcmp(*to, taken_from) == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s is what messages are taken from", what);
    if (parts->sink_type->name_check && !parts->sink_type->name_check(*to, &why))
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s: \"%.80s\": %s", what, *to, why);
    return HAPAX_ERR_NONE;
}

static enum hapax_error name_letters(struct opened *opened, char text[HAPAX_TEXT_MAX])
{
    struct hapax__loop_parts *parts = &opened->parts;
    enum hapax_error error;

    error = letters_name(&parts->dead_letters, &opened->dead_letters, opened->consumer.dead_letters,
                         parts, "dead_letters", "dead", text);
    if (error == HAPAX_ERR_NONE &&
        (opened->consumer.parked || opened->consumer.unknown == HAPAX_UNKNOWN_PARK))
        error = letters_name(&parts->parked, &opened->parked, opened->consumer.parked, parts,
                             "parked", "parked", text);
    return error;
}

static enum hapax_error find_types(struct opened *opened, char text[HAPAX_TEXT_MAX])
{
    const char *from = opened->consumer.from;

    if (!from || from[0] == '\0')
        return hapax__fail(text, HAPAX_ERR_INVALID, "from is missing");
    opened->parts.source_type = hapax__source_type_of(from);
    opened->parts.sink_type = hapax__sink_type_of(from);
    if (!opened->parts.source_type || !opened->parts.sink_type)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "from: scheme \"%.*s\" is none of amqp, amqps, kafka, sqs",
                           (int)(strcspn(from, ":") < 32 ? strcspn(from, ":") : 32), from);
    return check_type(&opened->consumer, opened->parts.source_type, text);
}

static enum hapax_error open_parts(struct opened *opened, char text[HAPAX_TEXT_MAX])
{
    struct hapax_consumer *consumer = &opened->consumer;
    struct hapax__loop_parts *parts = &opened->parts;
    enum hapax_error error;

    parts->consumer = consumer;
    error = find_types(opened, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (consumer->order == HAPAX_ORDER_DEFAULT)
        consumer->order = parts->source_type->orders;
    if (consumer->in_hand_max == 0)
        consumer->in_hand_max = 4 * consumer->concurrency;
    error = parts->source_type->open(&parts->source, consumer, text);
    if (error == HAPAX_ERR_NONE)
        error = parts->sink_type->open(&parts->sink, consumer->from, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__message_ask_read(&opened->ask, consumer, parts->source, text);
    if (error == HAPAX_ERR_NONE)
        error = name_letters(opened, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    parts->scope = consumer->scope ? consumer->scope : parts->source->group;
    return HAPAX_ERR_NONE;
}

/* Opens everything. On failure everything is closed again. */
static enum hapax_error open_all(struct opened *opened, const struct hapax_consumer *consumer,
                                 char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    text[0] = '\0';
    memset(opened, 0, sizeof(*opened));
    opened->consumer = *consumer;
    error = check_words(consumer, text);
    if (error == HAPAX_ERR_NONE)
        error = check_numbers(consumer, text);
    if (error == HAPAX_ERR_NONE)
        error = open_parts(opened, text);
    if (error != HAPAX_ERR_NONE)
        close_unused(opened);
    return error;
}

enum hapax_error hapax_consumer_check(const struct hapax_consumer *consumer,
                                      char text[HAPAX_TEXT_MAX])
{
    struct opened opened;
    enum hapax_error error = open_all(&opened, consumer, text);

    if (error == HAPAX_ERR_NONE)
        close_unused(&opened);
    return error;
}

/* ---- running ----------------------------------------------------------------------------- */

enum hapax_error hapax_consumer_run(struct hapax *h, const struct hapax_consumer *consumer,
                                    hapax_message_handler *handler,
                                    hapax_message_handler *reconcile, void *arg,
                                    struct hapax_consumer_stats *stats, char text[HAPAX_TEXT_MAX])
{
    struct hapax_consumer_stats unread;
    struct hapax__work work = {.h = h, .handler = handler, .reconcile = reconcile, .arg = arg};
    struct opened opened;
    enum hapax_error error;

    assert(h && handler);
    text[0] = '\0';
    if (consumer->policy.on_expired == HAPAX_EXPIRED_RECONCILE && !reconcile)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "on_expired is reconcile, and there is no handler to ask");
    if (getrandom(&work.seed, sizeof(work.seed), 0) != (ssize_t)sizeof(work.seed))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "no random bytes");
    error = open_all(&opened, consumer, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    work.consumer = &opened.consumer;
    work.ask = &opened.ask;
    work.stats = stats ? stats : &unread;
    hapax__stats_clear(work.stats);
    opened.parts.work = &work;
    error = hapax__loop_run(&opened.parts, text);
    release(&opened);
    return error;
}
