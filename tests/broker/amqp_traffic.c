/* SPDX-License-Identifier: Apache-2.0
 *
 * Traffic through a RabbitMQ queue, for tests that break the broker meanwhile
 * (tests/broker/test_amqp.py):
 *
 *   amqp_traffic SOURCE-URI SINK-URI N [MOST]
 *           Sends N numbered letters, each until its result is OK, and acknowledges each letter
 *           that comes. Ends when each letter came and no second copy is left in the queue. With
 *           MOST it goes on to send, up to MOST letters, until the connection is lost.
 *   amqp_traffic SOURCE-URI
 *           Only stays connected.
 *
 * Prints "connected" and "lost" when that changes, "half" when half the letters came, and its
 * counts at the end. Writes its counts and its connections to stderr every ten seconds, for who
 * reads of a test that waited in vain. Ends early when its standard input ends.
 *
 * A letter whose confirmation was lost is sent again, so the queue may have two copies. To wait for
 * the first copies only would leave the others there. So the program then sends one more letter for
 * each letter that was sent again. The queue keeps its order: each copy came before that letter.
 * Rejected: to ask the queue for its length, which leaves out letters on the wire.
 */
#include "amqp_bed.h"

#include <inttypes.h>
#include <unistd.h>

/* A thousand under way are more than the buffers of a connection take. */
#define LETTER_BYTES 1024

struct letter {
    struct hapax__letter letter;
    char body[LETTER_BYTES];
    bool confirmed, came, again; /* again: sent a second time */
};

static struct bed bed;
static struct letter *letters;
static bool declared; /* the source was connected, so its queue is there */
static size_t next; /* letter to be sent */
static size_t n, half, confirmed, came, came_again, sent_again;

static void say(const char *word)
{
    printf("%s\n", word);
    (void)fflush(stdout);
}

static void send_some(void)
{
    while (next < n) {
        struct letter *letter = &letters[next];

        (void)snprintf(letter->body, sizeof(letter->body), "%zu", next);
        letter->letter =
            (struct hapax__letter){.to = bed.source->name,
                                   .body = {(uint8_t *)letter->body, sizeof(letter->body)},
                                   .tag = letter};
        if (!bed.sink->type->send(bed.sink, &letter->letter))
            return;
        ++next;
    }
}

static void reap_all(void)
{
    enum hapax__sent sent;
    void *tag;

    while ((sent = bed.sink->type->reap(bed.sink, &tag)) != HAPAX__SENT_NOTHING) {
        struct letter *letter = tag;

        must(!letter->confirmed);
        letter->confirmed = sent == HAPAX__SENT_OK;
        confirmed += letter->confirmed;
        if (letter->confirmed)
            continue;
        sent_again++;
        letter->again = true;
        must(bed.sink->type->send(bed.sink, &letter->letter));
    }
}

static void take_all(void)
{
    struct hapax__delivered *delivered;

    while ((delivered = bed.source->type->take(bed.source)) != NULL) {
        size_t i;

        must(delivered->message.body.len == LETTER_BYTES);
        i = strtoul((const char *)delivered->message.body.ptr, NULL, 10);
        must(i < n);
        came_again += letters[i].came;
        came += !letters[i].came;
        if (!letters[i].came && came == half)
            say("half");
        letters[i].came = true;
        bed.source->type->release(bed.source, delivered, HAPAX__RELEASE_ACK);
    }
}

static void print_counts(FILE *to)
{
    fprintf(to, "confirmed %zu, came %zu, sent again %zu, came again %zu, reconnects %" PRIu64 "\n",
            confirmed, came, sent_again, came_again, bed.source->reconnects);
}

/* The letters that did not come, as ranges; "again" were sent a second time. */
static void print_missing(FILE *to)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && letters[end].came == letters[i].came &&
                          letters[end].confirmed == letters[i].confirmed &&
                          letters[end].again == letters[i].again;)
            end++;
        if (!letters[i].came)
            fprintf(to, "not here: %zu to %zu%s%s\n", i, end - 1,
                    letters[i].confirmed ? ", confirmed" : "", letters[i].again ? ", again" : "");
    }
}

/* Every ten seconds. */
static void tell_state(void)
{
    static int64_t next_us;

    if (hapax__monotonic_us() < next_us)
        return;
    next_us = hapax__monotonic_us() + 10000000;
    fprintf(stderr, "source: connected %d, lag %" PRId64 ", \"%s\"\n", bed.source->connected,
            bed.source->lag, bed.source->text);
    if (bed.sink)
        fprintf(stderr, "sink: connected %d, \"%s\"\n", bed.sink->connected, bed.sink->text);
    print_counts(stderr);
    if (declared && next == n)
        print_missing(stderr);
}

static bool input_ended(void)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&fd, 1, 0) == 1;
}

int main(int argc, char **argv)
{
    bool connected = false;
    size_t least, most, covered = 0;

    must(argc == 2 || argc == 4 || argc == 5);
    bed.source = source_at(500, "%s", argv[1]);
    bed.room = 500;
    n = least = argc > 2 ? strtoul(argv[3], NULL, 10) : 0;
    half = least / 2;
    if (argc == 5)
        n = strtoul(argv[4], NULL, 10);
    most = n + 100;
    letters = calloc(most, sizeof(*letters));
    must(letters);
    if (argc > 2)
        bed.sink = sink_at(argv[2]);
    while (!input_ended()) {
        if (argc > 2 && confirmed == n && came == n) {
            if (sent_again == covered)
                break;
            covered = sent_again;
            must(n < most);
            n++; /* comes behind each second copy */
        }
        tell_state();
        turn(&bed);
        must(bed.error == HAPAX_ERR_NONE);
        if (bed.sink) {
            reap_all();
            if (declared)
                send_some();
        }
        take_all();
        if (connected != bed.source->connected) {
            connected = bed.source->connected;
            declared = true; /* before that the queue may be missing, and letters come back */
            say(connected ? "connected" : "lost");
            if (!connected)
                n = next > least ? next : least;
        }
    }
    print_counts(stdout);
    bed.source->type->close(bed.source, PATIENCE_MS);
    if (bed.sink)
        bed.sink->type->close(bed.sink);
    free(letters);
    return 0;
}
