/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax redrive: puts dead letters back to where they came from, after the reason for their failure
 * is gone.
 *
 * A dead letter leaves its queue once the target has confirmed its copy. So no crash loses a
 * letter. A letter may be put back twice; its record then lets it run once. The copy keeps
 * hapax-reason, which tells the consumer that the copy is no duplicate. A letter that is not put
 * back is kept in memory until the end, so that the broker does not deliver it again and again. The
 * mark of this run shows a letter that was put back, failed again and is a dead letter again.
 *
 * A Kafka topic takes no letter back: the group's offset says how far letters were seen. So a
 * letter that is left before one that was put back is published again at the topic's end, and a
 * later run sees it. Rejected: to pass over such letters. A redrive of one key would hide all the
 * others.
 *
 * A run keeps a limited number of letters, and reports that it did not see the letters behind them.
 * Rejected: to publish letters that are left again at the end of a RabbitMQ queue, too. The copy
 * would lack the broker's notes (x-death), its time to live would begin again, and a queue of
 * limited length drops letters to make room for it. An operator can ask for that with --all and
 * another queue.
 */
#include "cli.h"

#include "base/clock.h"
#include "base/span.h"
#include "base/time.h"
#include "base/uri.h"
#include "broker/letter.h"
#include "broker/publish.h"
#include "broker/sink.h"
#include "door/consume/ask.h"
#include "outbox.h"
#include "print.h"
#include "progress.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <unistd.h>

#define KEPT_MAX   HAPAX_IN_HAND_MAX
#define URI_MAX    4096u
#define RUN_MAX    48u
#define KEPT_BYTES 4096u /* for each letter that may be kept */
#define AT_ONCE    64u /* letters that come from RabbitMQ beside those that are left */
/* All letters were seen if none came for this time. IDLE_BLIND_US: the broker does not tell how
 * many wait. */
#define IDLE_US       US_PER_S
#define IDLE_BLIND_US (10 * US_PER_S)
/* Within this time a source counts the waiting messages again. */
#define COUNTED_US    (6 * US_PER_S)
#define STUCK_US      (30 * US_PER_S) /* without any progress */
#define PAUSE_MIN_US  (100 * US_PER_MS) /* before a lost letter is sent again */
#define PAUSE_MAX_US  (2 * US_PER_S)
#define CLOSE_WAIT_MS 5000
#define TURN_MS       100

struct redrive_args {
    struct cli_args args;
    const char *from;
    const char *to;
    const char *scope;
    const char *key;
    const char *key_from;
    int64_t limit;
    int64_t in_hand_max; /* 0: KEPT_MAX */
    bool all;
    bool dry_run;
};

enum item_state { LEFT = 1, PUBLISHING, DONE };

struct item {
    TAILQ_ENTRY(item) link;
    struct hapax__delivered *delivered;
    enum item_state state;
    struct hapax__letter letter;
    struct hapax__publication publication;
    bool moved; /* goes to the end of its own topic, not to the target */
};

/* A sink, and the letters on their way to it. */
struct target {
    struct hapax__sink *sink; /* NULL: not opened */
    struct hapax__publisher publisher;
};

struct redriving {
    const struct redrive_args *args;
    char from[URI_MAX]; /* with a group, if it needs one */
    char run[RUN_MAX]; /* hapax-redrive of this run */
    struct hapax_message_header mark;
    struct hapax_policy policy; /* for hapax__message_ask() alone */
    struct hapax_consumer consumer; /* for hapax__message_ask() and the source */
    struct hapax__source *source;
    struct target to;
    /* Kafka: the letters' own topic. No sink: the source takes letters back. */
    struct target back;
    struct hapax__ask ask;
    int signals; /* the run's own, unless args->ending is */
    TAILQ_HEAD(items, item) items; /* in the order they came */
    size_t kept; /* items whose delivery is not released */
    size_t kept_bytes;
    size_t busy; /* PUBLISHING */
    uint64_t seen, put_back, left, again;
    uint64_t damaged; /* wanted, but a copy would lack headers */
    uint64_t voided; /* the source's count, as last noted */
    bool looked; /* the target is there */
    bool full; /* no more are taken */
    bool stopped; /* by a signal */
    int64_t event_us; /* the last progress */
    struct progress progress;
};

static const struct cli_option options[] = {
    {"from", "URI", CLI_TEXT, offsetof(struct redrive_args, from), 0, 0,
     "The dead letters, as amqp://localhost/?queue=orders.dead"},
    {"to", "URI", CLI_TEXT, offsetof(struct redrive_args, to), 0, 0,
     "Where they are put, as amqp://localhost/?queue=orders"},
    {"scope", "S", CLI_TEXT, offsetof(struct redrive_args, scope), 0, 0,
     "Only letters of this scope"},
    {"key", "K", CLI_TEXT, offsetof(struct redrive_args, key), 0, 0,
     "Only letters of this key, whoever owns it"},
    {"key-from", "SOURCES", CLI_TEXT, offsetof(struct redrive_args, key_from), 0, 0,
     "Where K is in a message: the --key of \"hapax consume\""},
    {"all", NULL, CLI_FLAG, offsetof(struct redrive_args, all), 0, 0,
     "Also letters that neither failed nor were refused"},
    {"limit", "N", CLI_NUMBER, offsetof(struct redrive_args, limit), 1, 1000000000,
     "Put back at most N letters"},
    {"in-hand-max", "N", CLI_NUMBER, offsetof(struct redrive_args, in_hand_max), 1, KEPT_MAX,
     "Hold at most N letters at once, and 4 KiB for each (default 65535); with --dry-run the first "
     "N are printed"},
    {"dry-run", NULL, CLI_FLAG, offsetof(struct redrive_args, dry_run), 0, 0,
     "Print the letters, and leave them all"},
};

/* What can be read once the run is to end. */
static int ending(const struct redriving *redriving)
{
    return redriving->args->args.ending > 0 ? redriving->args->args.ending : redriving->signals;
}

static uint32_t kept_max(const struct redriving *redriving)
{
    return redriving->args->in_hand_max > 0 ? (uint32_t)redriving->args->in_hand_max : KEPT_MAX;
}

static enum cli_exit failed(const struct redriving *redriving, enum cli_exit exit,
                            enum hapax_error error, const char *text)
{
    return cli_fail(&redriving->args->args, exit, error, "%s", text);
}

/* ---- opening ------------------------------------------------------------------------------ */

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
 * the URI names a group. */
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
        total = snprintf(redriving->from, URI_MAX, "%s", uri);
    else
        total = snprintf(redriving->from, URI_MAX, "%s%cgroup=%.*s.redrive", uri,
                         strchr(uri, '?') ? '&' : '?', (int)len, topic);
    if (total > 0 && (unsigned)total < URI_MAX)
        return CLI_DONE;
    return cli_fail(&redriving->args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--from is too long");
}

static enum cli_exit open_failed(const struct redriving *redriving, enum hapax_error error,
                                 const char *option, const char *text)
{
    return cli_fail(&redriving->args->args, error == HAPAX_ERR_NOMEM ? CLI_UNREACHED : CLI_USAGE,
                    error, "%s%s", option, text);
}

static enum cli_exit open_sink(struct redriving *redriving, struct target *out, const char *uri,
                               const char *option)
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
    if (hapax__publisher_init(&out->publisher, out->sink, KEPT_MAX) != HAPAX_ERR_NONE)
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
    consumer->scope = "redrive"; /* unused: each letter has its own scope */
    consumer->in_hand_max = kept_max(redriving);
    error = type->open(&redriving->source, consumer, text);
    if (error != HAPAX_ERR_NONE)
        return open_failed(redriving, error, "--from: ", text);
    redriving->source->at_once = AT_ONCE;
    error = hapax__message_ask_read(&redriving->ask, consumer, redriving->source, text);
    if (error != HAPAX_ERR_NONE)
        return open_failed(redriving, error, "--key-from: ", text);
    return type->positions ? open_sink(redriving, &redriving->back, redriving->from, "--from: ")
                           : CLI_DONE;
}

/* Checks the settings, and opens source, sinks and ask. None of them connects yet. A failure is
 * printed; the caller closes what was opened. */
static enum cli_exit open_all(struct redriving *redriving)
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

/* ---- letters ------------------------------------------------------------------------------ */

/* Whether the letter has the wanted key. Without memory to tell, the letter is left. */
static bool has_key(struct redriving *redriving, const struct hapax__delivered *delivered)
{
    struct hapax__asked asked;

    return hapax__message_ask(&asked, &redriving->ask, &redriving->policy, delivered) ==
               HAPAX_ERR_NONE &&
           asked.refused == 0 && hapax__is(asked.request.key, redriving->args->key);
}

/* Whether the run can keep no more letters. */
static bool is_loaded(const struct redriving *redriving)
{
    return redriving->kept >= kept_max(redriving) ||
           redriving->kept_bytes >= (size_t)kept_max(redriving) * KEPT_BYTES;
}

/* Whether as many letters are put back, or printed, as wanted. */
static bool is_enough(const struct redriving *redriving)
{
    int64_t limit = redriving->args->limit;

    if (redriving->args->dry_run && redriving->args->in_hand_max > 0)
        return is_loaded(redriving);
    return limit > 0 && redriving->put_back + redriving->busy >= (uint64_t)limit;
}

static bool is_wanted(struct redriving *redriving, const struct hapax__delivered *delivered)
{
    const struct redrive_args *args = redriving->args;
    const struct hapax_message *message = &delivered->message;
    enum hapax__reason reason = hapax__reason_read(message);

    if (hapax__is(hapax__header_of(message, HAPAX__HEADER_REDRIVE), redriving->run)) {
        redriving->again++;
        return false;
    }
    if (!args->all && reason != HAPAX__REASON_FAILED && reason != HAPAX__REASON_REFUSED)
        return false;
    if (args->scope && !hapax__is(hapax__header_of(message, HAPAX__HEADER_SCOPE), args->scope))
        return false;
    if (is_enough(redriving))
        return false;
    if (delivered->damaged && !args->key) {
        redriving->damaged++;
        return false;
    }
    return !args->key || has_key(redriving, delivered);
}

/* Prints what an operator needs to decide; no key, no body. */
static void print_letter(const struct redriving *redriving, const struct hapax_message *message,
                         bool wanted)
{
    static const struct {
        const char *header, *name;
    } shown[] = {
        {HAPAX__HEADER_REASON, "reason"}, {HAPAX__HEADER_FROM, "from"},
        {HAPAX__HEADER_SCOPE, "scope"},   {HAPAX__HEADER_ATTEMPTS, "attempts"},
        {HAPAX__HEADER_ID, "id"},         {HAPAX__HEADER_TIME, "time_us"},
        {HAPAX__HEADER_ERROR, "error"},
    };
    struct json json;

    if (redriving->args->args.json) {
        json_begin_at(&json, redriving->args->args.out);
        json_bool(&json, "put_back", wanted);
    } else {
        fputs(wanted ? "would be put back:" : "would be left:", stdout);
    }
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++) {
        struct hapax_span value = hapax__header_of(message, shown[i].header);

        if (!value.ptr)
            continue;
        if (redriving->args->args.json) {
            json_bytes(&json, shown[i].name, value);
        } else {
            printf(" %s=", shown[i].name);
            print_text(stdout, value, false, 0);
        }
    }
    if (redriving->args->args.json)
        json_end(&json);
    else
        putchar('\n');
}

/* ---- taking and sending --------------------------------------------------------------------- */

/* Begins to publish a copy to the target, or to the letter's own topic. */
static void put_back(struct redriving *redriving, struct item *item, struct target *to)
{
    const struct hapax_message *message = &item->delivered->message;

    item->moved = to == &redriving->back;
    item->letter = (struct hapax__letter){
        .to = to->sink->name,
        .body = message->body,
        .content_type = message->content_type,
        .id = message->id,
        .type = message->type,
        .key = message->key,
        .headers = message->headers,
        .header_count = message->header_count,
        .kept = item->delivered->kept,
        .own = &redriving->mark,
        .own_count = item->moved ? 0 : 1,
    };
    item->state = PUBLISHING;
    redriving->busy++;
    hapax__publish(&to->publisher, &item->publication, &item->letter);
}

/* The bytes of a letter that is kept. */
static size_t size_of(const struct hapax__delivered *delivered)
{
    const struct hapax_message *message = &delivered->message;
    size_t size = message->body.len + delivered->kept.len;

    for (size_t i = 0; i < message->header_count; i++)
        size += message->headers[i].name.len + message->headers[i].value.len;
    return size;
}

static bool add(struct redriving *redriving, struct hapax__delivered *delivered)
{
    struct item *item = calloc(1, sizeof(*item));
    bool wanted;

    if (!item)
        return false;
    wanted = is_wanted(redriving, delivered);
    item->delivered = delivered;
    item->state = LEFT;
    if (wanted && !redriving->args->dry_run)
        put_back(redriving, item, &redriving->to);
    TAILQ_INSERT_TAIL(&redriving->items, item, link);
    redriving->kept++;
    redriving->kept_bytes += size_of(delivered);
    redriving->seen++;
    if (redriving->args->dry_run)
        print_letter(redriving, &delivered->message, wanted);
    return true;
}

static size_t room(const struct redriving *redriving)
{
    if (redriving->full || redriving->stopped || is_enough(redriving) || is_loaded(redriving))
        return 0;
    return kept_max(redriving) - redriving->kept;
}

static void take_all(struct redriving *redriving)
{
    struct hapax__delivered *delivered;

    while (room(redriving) > 0 && (delivered = redriving->source->type->take(redriving->source))) {
        redriving->event_us = hapax__monotonic_us();
        if (!add(redriving, delivered)) {
            redriving->source->type->release(redriving->source, delivered, HAPAX__RELEASE_RETURN);
            redriving->full = true;
        }
    }
}

static void drop(struct redriving *redriving, struct item *item)
{
    TAILQ_REMOVE(&redriving->items, item, link);
    free(item);
}

/* Ends the item and releases its delivery. Frees the item, unless move_left() is to see it. */
static void end_item(struct redriving *redriving, struct item *item, enum hapax__release how)
{
    redriving->kept--;
    redriving->kept_bytes -= size_of(item->delivered);
    redriving->source->type->release(redriving->source, item->delivered, how);
    item->delivered = NULL;
    item->state = DONE;
    if (how != HAPAX__RELEASE_ACK || !redriving->back.sink)
        drop(redriving, item);
}

/* Sends letters that are due to a sink, and takes their results. False: the sink refuses letters,
 * and the failure was printed. */
static bool work_on(struct redriving *redriving, struct target *to)
{
    struct hapax__publication *publication;
    enum hapax__sent sent;

    if (!to->sink)
        return true;
    hapax__publisher_pump(&to->publisher);
    while ((publication = hapax__publisher_reap(&to->publisher, &sent))) {
        struct item *item =
            (struct item *)((char *)publication - offsetof(struct item, publication));

        if (sent == HAPAX__SENT_LOST) {
            hapax__publish_again(&to->publisher, publication, PAUSE_MIN_US, PAUSE_MAX_US);
            continue;
        }
        redriving->event_us = hapax__monotonic_us();
        redriving->busy--;
        if (sent == HAPAX__SENT_REFUSED) {
            item->state = LEFT;
            (void)failed(redriving, CLI_NO, HAPAX_ERR_REFUSED, to->sink->why);
            return false;
        }
        if (!item->moved)
            redriving->put_back++;
        end_item(redriving, item, HAPAX__RELEASE_ACK);
    }
    return true;
}

/* Asks once whether the target is there, also where no letter is put back. False: it is not, and
 * the failure was printed. */
static bool look(struct redriving *redriving)
{
    struct hapax__sink *sink = redriving->to.sink;

    if (redriving->looked)
        return true;
    switch (sink->type->look(sink)) {
    case HAPAX__SENT_OK:
        redriving->looked = true;
        redriving->event_us = hapax__monotonic_us();
        return true;
    case HAPAX__SENT_REFUSED:
        (void)failed(redriving, CLI_NO, HAPAX_ERR_REFUSED, sink->why);
        return false;
    default:
        return true;
    }
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void wait_turn(struct redriving *redriving)
{
    struct pollfd fds[3 * HAPAX__POLLFDS_MAX + 1];
    int64_t now_us = hapax__monotonic_us();
    int64_t due_us = now_us + INT64_C(1000) * TURN_MS;
    const struct target *const targets[2] = {&redriving->to, &redriving->back};
    int64_t one_us = due_us;
    size_t n;

    redriving->source->at_once = (uint32_t)(redriving->kept - redriving->busy) + AT_ONCE;
    /* Nobody reads it: so it stands there for whoever else waits for it. */
    fds[0] = (struct pollfd){.fd = redriving->stopped ? -1 : ending(redriving), .events = POLLIN};
    n = 1 + redriving->source->type->watch(redriving->source, fds + 1, &one_us);
    due_us = one_us < due_us ? one_us : due_us;
    for (size_t i = 0; i < 2; i++) {
        struct hapax__sink *sink = targets[i]->sink;

        if (!sink)
            continue;
        n += sink->type->watch(sink, fds + n, &one_us);
        due_us = hapax__least(due_us, one_us);
        due_us = hapax__least(
            due_us, hapax__most(now_us + US_PER_MS, hapax__publisher_due(&targets[i]->publisher)));
    }
    (void)poll(fds, (nfds_t)n, due_us > now_us ? (int)((due_us - now_us + 999) / 1000) : 0);
    redriving->stopped |= fds[0].revents != 0;
}

/* How many letters stand behind those that were seen; -1: not known. Kafka's count includes the
 * letters that this run keeps, and those put back behind them. The others' counts leave out what
 * the source has fetched, and that of SQS may be a minute old. */
static int64_t not_seen(const struct redriving *redriving)
{
    const struct hapax__source *source = redriving->source;

    if (source->lag < 0)
        return -1;
    if (redriving->back.sink)
        return source->lag <= (int64_t)redriving->kept ? 0 : -1;
    if (source->more || (source->lag == 0 ? is_loaded(redriving) : source->type->estimates))
        return -1;
    return source->lag;
}

/* Whether the run is over: each letter to put back is there, and all letters have been seen or no
 * more can be. */
static bool is_done(const struct redriving *redriving)
{
    const struct hapax__source *source = redriving->source;
    int64_t idle_us = hapax__monotonic_us() - redriving->event_us;
    int64_t enough_us = not_seen(redriving) == 0 ? IDLE_US : IDLE_BLIND_US;

    if (is_loaded(redriving) || source->more)
        enough_us = COUNTED_US;
    if (redriving->busy > 0 || (!redriving->looked && !redriving->stopped))
        return false;
    if (room(redriving) == 0 && (redriving->full || redriving->stopped || is_enough(redriving)))
        return true;
    return source->connected && idle_us >= enough_us;
}

/* Why letters were not seen, or may not have been. NULL: all were seen. waiting: the result of
 * not_seen() before letters are released. */
static const char *why_not_seen(const struct redriving *redriving, int64_t waiting)
{
    const struct hapax__source *source = redriving->source;

    if (redriving->full)
        return "out of memory";
    if (redriving->stopped || is_enough(redriving) || waiting == 0)
        return NULL;
    if (is_loaded(redriving))
        return "those that are left before them are as many as one run holds (--in-hand-max): put "
               "some aside with --all --limit N and another queue or topic for --to";
    if (source->more && redriving->back.sink)
        return "a run sees 16384 letters of a partition from the first that it leaves: run it "
               "again; where that puts back none, put some aside with --all --limit N and another "
               "topic for --to";
    if (source->more)
        return "some were still on the way, or no more can be held: run it again";
    if (source->type->estimates && source->lag > 0)
        return "SQS still counts some, which may be a minute old: run it again then. They may be "
               "in other hands, or behind letters of their group that are left";
    return waiting > 0 ? "the broker gives no more at once (prefetch), or gives them to another"
                       : NULL;
}

/* Whether letters surely were not seen; otherwise it is possible. */
static bool is_sure(const struct redriving *redriving, int64_t waiting)
{
    const struct hapax__source *source = redriving->source;

    if (waiting > 0 || redriving->full)
        return true;
    return redriving->back.sink ? source->lag > (int64_t)redriving->seen
                                : source->more && !source->type->estimates;
}

/* Reports letters that were not seen, so that nobody takes them for missing. */
static enum cli_exit say_not_seen(const struct redriving *redriving, const char *why, bool surely)
{
    char text[HAPAX_TEXT_MAX];

    (void)snprintf(text, sizeof(text), "%snot all letters were seen: %s", surely ? "" : "perhaps ",
                   why);
    return failed(redriving, CLI_NO, HAPAX_ERR_TOO_BIG, text);
}

static enum cli_exit say_damaged(const struct redriving *redriving)
{
    char text[HAPAX_TEXT_MAX];

    (void)snprintf(text, sizeof(text),
                   "left, since a copy would lack headers: %" PRIu64 " (over 256 headers, or some "
                   "that cannot be read)",
                   redriving->damaged);
    return failed(redriving, CLI_NO, HAPAX_ERR_TOO_BIG, text);
}

static enum cli_exit check_progress(const struct redriving *redriving)
{
    const struct hapax__source *source = redriving->source;
    const struct hapax__sink *back = redriving->back.sink;
    const char *text = redriving->to.sink->text;

    if (hapax__monotonic_us() - redriving->event_us < STUCK_US)
        return CLI_DONE;
    if (!source->connected)
        text = source->text;
    else if (back && !back->connected)
        text = back->text;
    return failed(redriving, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                  text[0] ? text : "the broker does not answer");
}

/* Forgets deliveries that the broker took back: it delivers them again. */
static void forget_voided(struct redriving *redriving)
{
    struct item *item, *next;

    if (redriving->voided == redriving->source->voided)
        return;
    redriving->voided = redriving->source->voided;
    for (item = TAILQ_FIRST(&redriving->items); item; item = next) {
        struct target *to = item->moved ? &redriving->back : &redriving->to;

        next = TAILQ_NEXT(item, link);
        if (item->state == DONE || !item->delivered->voided)
            continue;
        if (item->state == PUBLISHING) {
            if (!hapax__publish_withdraw(&to->publisher, &item->publication))
                continue;
            redriving->busy--;
        }
        redriving->seen--;
        end_item(redriving, item, HAPAX__RELEASE_RETURN);
    }
}

/* Pumps the source. If its connection came or went, the waiting time begins again. */
static enum cli_exit pump_source(struct redriving *redriving, bool taking)
{
    struct hapax__source *source = redriving->source;
    enum hapax_error error;
    bool was;

    assert(source);
    was = source->connected;
    error = source->type->pump(source, taking ? room(redriving) : 0);

    if (error == HAPAX_ERR_REFUSED)
        return failed(redriving, CLI_NO, error, source->text);
    if (source->connected != was)
        redriving->event_us = hapax__monotonic_us();
    forget_voided(redriving);
    return CLI_DONE;
}

/* Behind those that were seen the broker counts the others, as far as it does. */
static void tell_progress(struct redriving *redriving)
{
    double seen = (double)redriving->seen;
    int64_t lag = redriving->back.sink ? -1 : redriving->source->lag;

    progress_tell(&redriving->progress, lag > 0 ? seen / (seen + (double)lag) : 0, redriving->seen,
                  "letters seen");
}

/* Lets source and sinks work until all letters are seen and put back; with `taking` false, only
 * until the letters under way are sent. */
static enum cli_exit work(struct redriving *redriving, bool taking)
{
    enum cli_exit exit = CLI_DONE;

    redriving->event_us = hapax__monotonic_us();
    do {
        exit = pump_source(redriving, taking);
        if (exit != CLI_DONE)
            break;
        if (taking)
            take_all(redriving);
        if (!work_on(redriving, &redriving->to) || !work_on(redriving, &redriving->back) ||
            !look(redriving))
            return CLI_NO;
        if (taking ? is_done(redriving) : redriving->busy == 0)
            break;
        exit = check_progress(redriving);
        tell_progress(redriving);
        wait_turn(redriving);
    } while (exit == CLI_DONE);
    return exit;
}

/* Kafka: publishes letters again that are left before one that was put back, so that a later run
 * sees them. A letter whose copy would lack headers stays: a later run sees it where it is, and
 * those behind it again. */
static enum cli_exit move_left(struct redriving *redriving)
{
    struct item *item, *last = NULL;

    if (!redriving->back.sink)
        return CLI_DONE;
    TAILQ_FOREACH (item, &redriving->items, link)
        if (item->state == DONE && !item->moved)
            last = item;
    for (item = TAILQ_FIRST(&redriving->items); last && item != last; item = TAILQ_NEXT(item, link))
        if (item->state == LEFT && !item->delivered->damaged) {
            put_back(redriving, item, &redriving->back);
            redriving->left++;
        }
    return redriving->busy > 0 ? work(redriving, false) : CLI_DONE;
}

static void close_target(struct target *to)
{
    if (!to->sink)
        return;
    to->sink->type->close(to->sink);
    hapax__publisher_release(&to->publisher);
    to->sink = NULL;
}

static void close_sinks(struct redriving *redriving)
{
    close_target(&redriving->to);
    close_target(&redriving->back);
}

/* Closes the sinks first: they borrow bytes that the source owns. */
static void return_left(struct redriving *redriving)
{
    struct item *item, *next;

    close_sinks(redriving);
    for (item = TAILQ_FIRST(&redriving->items); item; item = next) {
        next = TAILQ_NEXT(item, link);
        if (item->delivered) {
            redriving->left += !item->moved;
            end_item(redriving, item, HAPAX__RELEASE_RETURN);
        } else {
            drop(redriving, item);
        }
    }
}

static void print_sum(const struct redriving *redriving, int64_t waiting)
{
    struct json json;

    if (redriving->args->args.json) {
        json_begin_at(&json, redriving->args->args.out);
        json_unsigned(&json, "put_back", redriving->put_back);
        json_unsigned(&json, "left", redriving->left);
        json_unsigned(&json, "failed_again", redriving->again);
        if (waiting >= 0)
            json_number(&json, "not_seen", waiting);
        else
            json_null(&json, "not_seen");
        json_end(&json);
        return;
    }
    printf("put back: %" PRIu64 ", left: %" PRIu64, redriving->put_back, redriving->left);
    if (redriving->again > 0)
        printf(", of these failed again: %" PRIu64, redriving->again);
    if (waiting > 0)
        printf(", not seen: %" PRId64, waiting);
    putchar('\n');
}

/* ---- the command ---------------------------------------------------------------------------- */

static void release(struct redriving *redriving)
{
    if (redriving->source) {
        return_left(redriving);
        redriving->source->type->close(redriving->source, CLOSE_WAIT_MS);
    }
    close_sinks(redriving);
    if (redriving->signals >= 0)
        close(redriving->signals);
    explicit_bzero(redriving, sizeof(*redriving));
    free(redriving);
}

static enum cli_exit redrive(const struct redrive_args *args)
{
    struct redriving *redriving = calloc(1, sizeof(*redriving));
    const char *why = NULL; /* letters were not seen */
    int64_t waiting = -1;
    bool opened = false, surely = false;
    enum cli_exit exit, said = CLI_DONE;

    if (!redriving)
        return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    redriving->args = args;
    TAILQ_INIT(&redriving->items);
    if (!args->dry_run) /* which prints each letter */
        progress_begin(&redriving->progress, &args->args);
    redriving->signals = args->args.ending > 0 ? -1 : cli_signals_begin();
    exit = ending(redriving) >= 0
               ? open_all(redriving)
               : failed(redriving, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    opened = exit == CLI_DONE;
    if (opened)
        exit = work(redriving, true);
    progress_end(&redriving->progress);
    if (opened) {
        waiting = not_seen(redriving);
        surely = is_sure(redriving, waiting);
    }
    if (exit == CLI_DONE) {
        why = why_not_seen(redriving, waiting);
        exit = move_left(redriving);
    }
    if (opened) {
        return_left(redriving);
        if (!redriving->args->dry_run)
            print_sum(redriving, waiting);
        if (exit == CLI_DONE && redriving->damaged > 0)
            said = say_damaged(redriving);
        if (exit == CLI_DONE && why)
            said = say_not_seen(redriving, why, surely);
        exit = exit == CLI_DONE ? said : exit;
    }
    if (exit == CLI_DONE && redriving->args->key && redriving->seen == redriving->left)
        exit = redriving->args->dry_run ? exit : CLI_NO;
    release(redriving);
    return exit;
}

/* Puts messages of an outbox back that a relay put aside. */
static enum cli_exit redrive_outbox(const struct redrive_args *args)
{
    if (args->to || args->scope || args->key_from || args->limit > 0 || args->all || args->dry_run)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--from postgres://... goes with --key alone: a relay publishes to where "
                        "each message was to go");
    return outbox_put_back(&args->args, args->from, args->key);
}

static bool is_outbox(const char *from)
{
    return from &&
           (hapax__text_begins(from, "postgres://") || hapax__text_begins(from, "postgresql://"));
}

static enum cli_exit run(struct cli_args *args)
{
    if (is_outbox(((const struct redrive_args *)args)->from))
        return redrive_outbox((const struct redrive_args *)args);
    return redrive((const struct redrive_args *)args);
}

const struct cli_command cli_redrive = {
    .name = "redrive",
    .summary = "put dead letters back",
    .synopsis = {"--from URI --to URI [--limit N] [--dry-run]",
                 "--from URI --to URI --key K [--scope S] [--key-from SOURCES]",
                 "--from postgres://... [--key K]"},
    .prose =
        "Takes the dead letters of a queue or topic and puts them back to where they came from: "
        "each then runs as often as a new message would. Only letters that failed or were "
        "refused are put back. The others (a mismatch, no key, an unknown outcome) need --all, "
        "and most often an operator first. What is left stays where it is. A letter leaves its "
        "queue once its copy is confirmed, so a crash loses none.\n\n"
        "The command ends when all letters were seen, and prints how many were put back and how "
        "many are left. Exit status 1: --key found none, a queue does not exist, letters were "
        "not seen, or a copy would lack headers of its letter. A run keeps 65535 of the letters "
        "that it leaves, or 256 MiB, and sees none behind them. For a Kafka topic the group "
        "TOPIC.redrive keeps how far the run came. What is left before a letter that was put "
        "back goes to the topic's end. Of a partition 16384 letters are seen, from the first one "
        "that is left. From a database: the messages of its outbox that a relay put aside, all "
        "or those of a key, are published after all. See docs/consume.md and docs/sagas.md.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .no_store = true,
    .examples = {{"hapax redrive --from 'amqp://localhost/?queue=orders.dead' --to "
                  "'amqp://localhost/?queue=orders'",
                  "After the handler is mended."}},
    .args_size = sizeof(struct redrive_args),
    .run = run,
};
