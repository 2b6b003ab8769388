/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax redrive works with: a source of dead letters and a sink for the target. Kafka's
 * letters that are left need a second sink, to their own topic. Nothing here connects.
 */
#include "redrive.h"

#include "base/clock.h"
#include "base/uri.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

static bool has_group(const char *uri)
{
    const char *query = strchr(uri, '?');
    struct hapax__uri_parameter parameter;

    if (!query)
        return false;
    query++;
    while (hapax__uri_parameter(&parameter, &query))
        if (parameter.name_len == 5 && memcmp(parameter.name, "group", 5) == 0)
            return true;
    return false;
}

/* Kafka: the dead letters of orders.billing.dead are read as group orders.billing.redrive, unless
 * the URI names one. */
static enum cli_exit name_source(struct redriving *redriving)
{
    static const char *const ends[] = {".dead", ".parked"};
    const char *uri = redriving->args->from;
    const char *topic = uri + strcspn(uri, "?");
    size_t len = 0;
    int total;

    while (topic > uri && topic[-1] != '/') {
        topic--;
        len++;
    }
    for (size_t i = 0; i < 2; i++)
        if (len > strlen(ends[i]) &&
            memcmp(topic + len - strlen(ends[i]), ends[i], strlen(ends[i])) == 0) {
            len -= strlen(ends[i]);
            break;
        }
    if (strncmp(uri, "kafka://", 8) != 0 || has_group(uri))
        total = snprintf(redriving->from, REDRIVE_URI_MAX, "%s", uri);
    else
        total = snprintf(redriving->from, REDRIVE_URI_MAX, "%s%cgroup=%.*s.redrive", uri,
                         strchr(uri, '?') ? '&' : '?', (int)len, topic);
    if (total > 0 && (unsigned)total < REDRIVE_URI_MAX)
        return CLI_DONE;
    return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--from is too long");
}

static enum cli_exit open_failed(const struct redriving *redriving, enum hapax_error error,
                                 const char *option, const char *text)
{
    return cli_fail(&redriving->args->args, error == HAPAX_ERR_NOMEM ? CLI_UNREACHED : CLI_USAGE,
                    error, "%s%s", option, text);
}

static enum cli_exit open_sink(struct redriving *redriving, struct redrive_target *out,
                               const char *uri, const char *option)
{
    const struct hapax__sink_type *type = hapax__sink_type_of(uri);
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!type)
        return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "%sis of no scheme known here: amqp://, amqps://, kafka:// or sqs://",
                        option);
    error = type->open(&out->sink, uri, text);
    if (error != HAPAX_ERR_NONE)
        return open_failed(redriving, error, option, text);
    if (hapax__publisher_init(&out->publisher, out->sink, REDRIVE_KEPT_MAX) != HAPAX_ERR_NONE)
        return open_failed(redriving, HAPAX_ERR_NOMEM, option, "out of memory");
    if (!out->sink->name[0])
        return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "%snames no queue or topic", option);
    return CLI_DONE;
}

static enum cli_exit open_source(struct redriving *redriving)
{
    const struct hapax__source_type *type = hapax__source_type_of(redriving->from);
    struct hapax_consumer *consumer = &redriving->consumer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!type)
        return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "--from is of no scheme known here: amqp://, amqps://, kafka:// or sqs://");
    hapax_consumer_init(consumer);
    consumer->from = redriving->from;
    consumer->key = redriving->args->key_from;
    consumer->scope = "redrive"; /* not used: each letter has its own */
    consumer->in_hand_max = REDRIVE_KEPT_MAX;
    error = type->open(&redriving->source, consumer, text);
    if (error != HAPAX_ERR_NONE)
        return open_failed(redriving, error, "--from: ", text);
    error = hapax__message_ask_read(&redriving->ask, consumer, redriving->source, text);
    if (error != HAPAX_ERR_NONE)
        return open_failed(redriving, error, "--key-from: ", text);
    return type->positions ? open_sink(redriving, &redriving->back, redriving->from, "--from: ")
                           : CLI_DONE;
}

enum cli_exit redrive_open(struct redriving *redriving)
{
    const struct redrive_args *args = redriving->args;
    uint32_t random = 0;
    enum cli_exit exit;

    if (!args->from || !args->to)
        return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        args->from
                            ? "--to URI is missing: the queue or topic to put them back to"
                            : "--from URI is missing: the queue or topic of the dead letters");
    if (strcmp(args->from, args->to) == 0)
        return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--from and --to are the same");
    hapax_policy_init(&redriving->policy);
    redriving->policy.max_request = SIZE_MAX;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return cli_fail(&redriving->args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no random bytes");
    (void)snprintf(redriving->run, sizeof(redriving->run), "%" PRId64 "-%08" PRIx32,
                   hapax__boot_us(), random);
    redriving->mark =
        (struct hapax_message_header){hapax_str(HAPAX__HEADER_REDRIVE), hapax_str(redriving->run)};
    exit = name_source(redriving);
    if (exit == CLI_DONE)
        exit = open_source(redriving);
    if (exit == CLI_DONE)
        exit = open_sink(redriving, &redriving->to, args->to, "--to: ");
    return exit;
}
