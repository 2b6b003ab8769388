/* SPDX-License-Identifier: Apache-2.0 */
#include "consume_play.h"

#include "base/clock.h"

#include "../must.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct play_out { /* one delivery */
    struct hapax__delivered delivered;
    struct play_message *message;
    struct play_out *next;
};

struct play_letter { /* with the sink */
    const struct hapax__letter *letter;
    enum hapax__sent sent;
    struct play_letter *next;
};

static struct play *playing;

/* ---- small things ---------------------------------------------------------------------- */

uint32_t play_random(struct play *play, uint32_t below)
{
    play->random = play->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(play->random >> 33) % below;
}

static bool chance(struct play *play, unsigned of_1000)
{
    return of_1000 > 0 && play_random(play, 1000) < of_1000;
}

static void poke(int fd)
{
    uint64_t one = 1;

    must(write(fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
}

static struct hapax_span copy(struct hapax_span from)
{
    uint8_t *to = malloc(from.len + 1);

    must(to);
    if (from.len > 0)
        memcpy(to, from.ptr, from.len);
    to[from.len] = '\0';
    return (struct hapax_span){to, from.len};
}

static void set_header(struct play_message *message, struct hapax_span name,
                       struct hapax_span value)
{
    must(message->header_count < PLAY_HEADERS_MAX);
    message->headers[message->header_count++] =
        (struct hapax_message_header){copy(name), copy(value)};
}

void play_header(struct play_message *message, const char *name, const char *value)
{
    set_header(message, hapax_str(name), hapax_str(value));
}

static struct play_message *add(struct play *play, const char *to)
{
    struct play_message *message = calloc(1, sizeof(*message));

    must(message);
    snprintf(message->to, sizeof(message->to), "%s", to);
    *play->end = message;
    play->end = &message->next;
    if (!play->head)
        play->head = message;
    return message;
}

static bool in_queue(const struct play_message *message)
{
    return strcmp(message->to, "Q") == 0;
}

/* The first message of the queue that is not done. Those before it stay done. */
static struct play_message *head(struct play *play)
{
    while (play->head && (!in_queue(play->head) || play->head->state == PLAY_DONE))
        play->head = play->head->next;
    return play->head;
}

static void stop_if_done(struct play *play)
{
    if (!play->stop_when_done || play->outs || play->letters)
        return;
    if (!head(play))
        poke(play->stop_fd);
}

/* ---- the source ------------------------------------------------------------------------ */

static enum hapax_error source_open(struct hapax__source **out,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    (void)consumer, (void)text;
    *out = &playing->source;
    return HAPAX_ERR_NONE;
}

static size_t source_watch(struct hapax__source *source, struct pollfd *fds, int64_t *due_us)
{
    struct play *play = playing;

    (void)source;
    pthread_mutex_lock(&play->lock);
    fds[0] = (struct pollfd){.fd = play->poke_fd, .events = POLLIN};
    if (!play->source.connected)
        *due_us = 0;
    for (struct play_message *m = head(play); m && play->room > 0; m = m->next)
        if (in_queue(m) && m->state == PLAY_WAITS && m->due_us < *due_us)
            *due_us = m->due_us;
    pthread_mutex_unlock(&play->lock);
    return 1;
}

static void cut(struct play *play)
{
    play->cut = false;
    play->source.connected = false;
    for (struct play_out *out = play->outs; out; out = out->next) {
        if (out->delivered.voided)
            continue;
        out->delivered.voided = true;
        out->message->state = PLAY_WAITS;
        play->source.voided++;
    }
}

static enum hapax_error source_pump(struct hapax__source *source, size_t room)
{
    struct play *play = playing;
    uint64_t count;
    bool gone;

    (void)source;
    pthread_mutex_lock(&play->lock);
    if (read(play->poke_fd, &count, sizeof(count)) < 0)
        must(errno == EAGAIN);
    if (!play->source.connected) {
        play->source.connected = true;
        play->source.reconnects++;
    } else if (play->cut || chance(play, play->chances.cut)) {
        cut(play);
    }
    play->room = room;
    gone = play->gone;
    stop_if_done(play);
    pthread_mutex_unlock(&play->lock);
    if (gone)
        snprintf(source->text, sizeof(source->text), "no queue \"Q\"");
    return gone ? HAPAX_ERR_REFUSED : HAPAX_ERR_NONE;
}

static struct hapax__delivered *deliver(struct play *play, struct play_message *message)
{
    struct play_out *out = calloc(1, sizeof(*out));
    struct hapax_message *to = &out->delivered.message;

    must(out);
    message->state = PLAY_OUT;
    to->redelivered = message->deliveries++ > 0;
    to->body = hapax_str(message->body);
    to->from = hapax_str("Q");
    to->headers = message->headers;
    to->header_count = message->header_count;
    out->delivered.order = hapax_str(message->order);
    out->message = message;
    out->next = play->outs;
    play->outs = out;
    if (++play->out_count > play->out_most)
        play->out_most = play->out_count;
    return &out->delivered;
}

static struct hapax__delivered *source_take(struct hapax__source *source)
{
    struct play *play = playing;
    struct hapax__delivered *delivered = NULL;
    int64_t now_us = hapax__monotonic_us();

    (void)source;
    pthread_mutex_lock(&play->lock);
    must(play->room > 0);
    for (struct play_message *m = head(play);
         m && !delivered && play->source.connected && !play->gone; m = m->next)
        if (in_queue(m) && m->state == PLAY_WAITS && m->due_us <= now_us)
            delivered = deliver(play, m);
    pthread_mutex_unlock(&play->lock);
    return delivered;
}

static void source_release(struct hapax__source *source, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    struct play *play = playing;
    struct play_out **at = &play->outs, *out;

    (void)source;
    pthread_mutex_lock(&play->lock);
    while (*at && &(*at)->delivered != delivered)
        at = &(*at)->next;
    must(*at); /* once each */
    out = *at;
    *at = out->next;
    play->out_count--;
    if (!delivered->voided) {
        out->message->state = how == HAPAX__RELEASE_RETURN ? PLAY_WAITS : PLAY_DONE;
        play->returned += how == HAPAX__RELEASE_RETURN;
        play->rejected += how == HAPAX__RELEASE_REJECT;
    }
    free(out);
    pthread_mutex_unlock(&play->lock);
}

static void source_extend(struct hapax__source *source, struct hapax__delivered *delivered)
{
    (void)source;
    must(!delivered->voided);
    playing->extended++;
}

static void source_close(struct hapax__source *source, int64_t wait_ms)
{
    (void)source;
    must(wait_ms >= 0 && !playing->outs);
    playing->closed++;
}

/* ---- the sink -------------------------------------------------------------------------- */

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    (void)uri, (void)text;
    *out = &playing->sink;
    return HAPAX_ERR_NONE;
}

static void sink_make(struct hapax__sink *sink, const char *name)
{
    (void)sink;
    must(name[0] != '\0');
}

static size_t sink_watch(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us)
{
    (void)sink, (void)fds;
    if (playing->letters)
        *due_us = hapax__monotonic_us() + 200; /* its result is drawn at the next pump */
    return 0;
}

static bool sink_send(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    struct play *play = playing;
    struct play_letter *with;
    unsigned count = 1;

    (void)sink;
    if (play->letters && chance(play, play->chances.full))
        return false;
    with = calloc(1, sizeof(*with));
    must(with);
    with->letter = letter;
    with->next = play->letters;
    play->letters = with;
    for (with = with->next; with; with = with->next)
        count++;
    if (count > play->letters_most)
        play->letters_most = count;
    return true;
}

static void publish(struct play *play, const struct hapax__letter *letter)
{
    struct play_message *message = add(play, letter->to);

    for (size_t i = 0; i < letter->header_count; i++)
        set_header(message, letter->headers[i].name, letter->headers[i].value);
    for (size_t i = 0; i < letter->own_count; i++)
        set_header(message, letter->own[i].name, letter->own[i].value);
    snprintf(message->body, sizeof(message->body), "%.*s", (int)letter->body.len,
             (const char *)letter->body.ptr);
    message->number = (int)strtol(play_value(message, "number"), NULL, 10);
    message->delay_ms = letter->delay_ms;
    message->due_us = hapax__monotonic_us() + letter->delay_ms * 1000;
    if (play->seen)
        play->seen(play->seen_arg, message);
}

static void draw(struct play *play, struct play_letter *with)
{
    const struct play_chances *chances = &play->chances;

    if (chance(play, chances->late))
        return;
    with->sent = HAPAX__SENT_OK;
    if (chance(play, chances->refused))
        with->sent = HAPAX__SENT_REFUSED;
    else if (chance(play, chances->lost))
        with->sent = HAPAX__SENT_LOST;
    else
        publish(play, with->letter);
    if (with->sent == HAPAX__SENT_OK && chance(play, chances->lost_published))
        with->sent = HAPAX__SENT_LOST;
}

static void sink_pump(struct hapax__sink *sink)
{
    struct play *play = playing;

    (void)sink;
    pthread_mutex_lock(&play->lock);
    for (struct play_letter *with = play->letters; with; with = with->next)
        if (with->sent == HAPAX__SENT_NOTHING)
            draw(play, with);
    pthread_mutex_unlock(&play->lock);
}

static enum hapax__sent sink_reap(struct hapax__sink *sink, void **tag)
{
    struct play_letter **at = &playing->letters, *with;
    enum hapax__sent sent;

    (void)sink;
    while (*at && (*at)->sent == HAPAX__SENT_NOTHING)
        at = &(*at)->next;
    with = *at;
    if (!with)
        return HAPAX__SENT_NOTHING;
    *at = with->next;
    *tag = with->letter->tag;
    sent = with->sent;
    free(with);
    return sent;
}

static void sink_close(struct hapax__sink *sink)
{
    struct play_letter *with;

    (void)sink;
    while ((with = playing->letters)) {
        playing->letters = with->next;
        free(with);
    }
    playing->closed++;
}

/* ---- for tests ------------------------------------------------------------------------- */

static const struct hapax__source_type played_source = {
    .schemes = {"played"},
    .delays = true,
    .rejects = true,
    .orders = HAPAX_ORDER_NONE,
    .open = source_open,
    .watch = source_watch,
    .pump = source_pump,
    .take = source_take,
    .release = source_release,
    .extend = source_extend,
    .close = source_close,
};

static const struct hapax__sink_type played_sink = {
    .schemes = {"played"},
    .open = sink_open,
    .make = sink_make,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .reap = sink_reap,
    .close = sink_close,
};

void play_open(struct play *play, uint64_t seed)
{
    memset(play, 0, sizeof(*play));
    pthread_mutex_init(&play->lock, NULL);
    play->type = played_source;
    play->source = (struct hapax__source){.type = &play->type, .name = "Q", .group = "Q"};
    play->sink = (struct hapax__sink){.type = &played_sink, .name = "Q"};
    play->end = &play->first;
    play->random = seed;
    play->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    play->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    must(play->stop_fd >= 0 && play->poke_fd >= 0);
    playing = play;
    hapax__source_use(&play->type, &played_sink);
}

void play_close(struct play *play)
{
    struct play_message *message;

    must(!play->outs && !play->letters);
    while ((message = play->first)) {
        play->first = message->next;
        for (size_t i = 0; i < message->header_count; i++) {
            free((void *)(uintptr_t)message->headers[i].name.ptr);
            free((void *)(uintptr_t)message->headers[i].value.ptr);
        }
        free(message);
    }
    close(play->stop_fd);
    close(play->poke_fd);
    pthread_mutex_destroy(&play->lock);
    hapax__source_use(NULL, NULL);
    playing = NULL;
}

struct play_message *play_publish(struct play *play, int number, const char *key, const char *order,
                                  const char *body)
{
    struct play_message *message;
    char text[16];

    pthread_mutex_lock(&play->lock);
    message = add(play, "Q");
    message->number = number;
    snprintf(text, sizeof(text), "%d", number);
    play_header(message, "number", text);
    if (key)
        play_header(message, "Idempotency-Key", key);
    if (order)
        snprintf(message->order, sizeof(message->order), "%s", order);
    snprintf(message->body, sizeof(message->body), "%s", body);
    pthread_mutex_unlock(&play->lock);
    poke(play->poke_fd);
    return message;
}

void play_put_back(struct play *play, struct play_message *letter)
{
    pthread_mutex_lock(&play->lock);
    snprintf(letter->to, sizeof(letter->to), "Q");
    letter->state = PLAY_WAITS;
    letter->due_us = 0;
    play->head = play->first;
    pthread_mutex_unlock(&play->lock);
    poke(play->poke_fd);
}

void play_cut(struct play *play)
{
    pthread_mutex_lock(&play->lock);
    play->cut = true;
    pthread_mutex_unlock(&play->lock);
    poke(play->poke_fd);
}

void play_stop(struct play *play)
{
    poke(play->stop_fd);
}

unsigned play_count(struct play *play, const char *to)
{
    unsigned count = 0;

    pthread_mutex_lock(&play->lock);
    for (struct play_message *m = play->first; m; m = m->next)
        count += strcmp(m->to, to) == 0 && m->state != PLAY_DONE;
    pthread_mutex_unlock(&play->lock);
    return count;
}

struct play_message *play_letter(struct play *play, const char *to, unsigned n)
{
    struct play_message *message;

    pthread_mutex_lock(&play->lock);
    for (message = play->first; message; message = message->next)
        if (strcmp(message->to, to) == 0 && n-- == 0)
            break;
    pthread_mutex_unlock(&play->lock);
    return message;
}

const char *play_value(const struct play_message *message, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < message->header_count; i++)
        if (message->headers[i].name.len == len &&
            memcmp(message->headers[i].name.ptr, name, len) == 0)
            return (const char *)message->headers[i].value.ptr;
    return "";
}
