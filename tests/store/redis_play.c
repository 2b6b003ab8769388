/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_play.h"

#include "../must.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 60
#define WORDS_MAX  4096u

/* ---- what was asked ------------------------------------------------------------------ */

/* The end of a line `<type><number>\r\n` at *at, with its number; false: not all of it is there. */
static bool number_at(const struct play_peer *peer, size_t *at, char type, size_t *out)
{
    const char *end = memchr(peer->bytes + *at, '\n', peer->len - *at);

    if (!end)
        return false;
    must(peer->bytes[*at] == type);
    *out = strtoul(peer->bytes + *at + 1, NULL, 10);
    *at = (size_t)(end + 1 - peer->bytes);
    return true;
}

/* Takes one whole command off a peer's bytes, its words parted by ' '. */
static bool next_command(struct play_peer *peer, char words[WORDS_MAX])
{
    size_t at = 0, argc, len, n = 0;

    if (peer->len == 0 || !number_at(peer, &at, '*', &argc))
        return false;
    for (size_t i = 0; i < argc; i++) {
        if (at >= peer->len || !number_at(peer, &at, '$', &len) || peer->len - at < len + 2)
            return false;
        must(n + len + 1 < WORDS_MAX);
        memcpy(words + n, peer->bytes + at, len);
        n += len;
        words[n++] = ' ';
        at += len + 2;
    }
    words[n - 1] = '\0';
    memmove(peer->bytes, peer->bytes + at, peer->len - at);
    peer->len -= at;
    return true;
}

/* ---- what is answered ---------------------------------------------------------------- */

static void leave(struct play *play, struct play_peer *peer)
{
    close(peer->fd);
    peer->fd = -1;
    play->left++;
    pthread_cond_broadcast(&play->changed);
}

static void tell(const struct play_peer *peer, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(peer->fd, bytes, len, MSG_NOSIGNAL);

        if (n <= 0)
            return;
        bytes += n;
        len -= (size_t)n;
    }
}

static const char *reply_to(struct play *play, const char *words)
{
    for (size_t k = 0; k < play->rule_count; k++) {
        struct play_rule *rule = &play->rules[k];

        if (rule->times < 0 || strncmp(words, rule->command, strlen(rule->command)) != 0)
            continue;
        if (rule->times > 0 && --rule->times == 0)
            rule->times = -1;
        return rule->reply;
    }
    return "+OK\r\n";
}

static void answer(struct play *play, struct play_peer *peer, const char *words)
{
    const char *reply = reply_to(play, words);
    size_t len = strlen(reply), words_len = strlen(words);
    bool cut = reply[len - 1] == CUT[0];

    if (strncmp(words, "PING", 4) != 0 && strncmp(words, "CLIENT", 6) != 0) {
        must(play->log_len + words_len + 2 < PLAY_LOG);
        memcpy(play->log + play->log_len, words, words_len);
        play->log_len += words_len;
        play->log[play->log_len++] = ';';
        play->log[play->log_len] = '\0';
    }
    if (strcmp(reply, HANG) == 0)
        return;
    tell(peer, reply, len - cut);
    if (cut)
        leave(play, peer);
}

static void hear(struct play *play, struct play_peer *peer)
{
    char words[WORDS_MAX];
    ssize_t n = recv(peer->fd, peer->bytes + peer->len, sizeof(peer->bytes) - peer->len, 0);

    if (n <= 0) {
        leave(play, peer);
        return;
    }
    peer->len += (size_t)n;
    while (peer->fd >= 0 && next_command(peer, words))
        answer(play, peer, words);
}

static void meet(struct play *play)
{
    int fd = accept(play->listener, NULL, NULL), one = 1;

    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (size_t k = 0; k < PLAY_PEERS; k++) {
        if (play->peers[k].fd >= 0)
            continue;
        play->peers[k].fd = fd;
        play->peers[k].len = 0;
        play->met++;
        return;
    }
    must(false && "a free peer");
}

static void *run(void *arg)
{
    struct play *play = arg;
    struct pollfd fds[PLAY_PEERS + 2];

    pthread_mutex_lock(&play->lock);
    while (play->running) {
        fds[PLAY_PEERS] = (struct pollfd){.fd = play->listener, .events = POLLIN};
        fds[PLAY_PEERS + 1] = (struct pollfd){.fd = play->wake[0], .events = POLLIN};
        for (size_t k = 0; k < PLAY_PEERS; k++)
            fds[k] = (struct pollfd){.fd = play->peers[k].fd, .events = POLLIN};
        pthread_mutex_unlock(&play->lock);
        poll(fds, PLAY_PEERS + 2, -1);
        pthread_mutex_lock(&play->lock);
        if (fds[PLAY_PEERS + 1].revents != 0)
            continue;
        if (fds[PLAY_PEERS].revents != 0)
            meet(play);
        for (size_t k = 0; k < PLAY_PEERS; k++)
            if (fds[k].revents != 0 && play->peers[k].fd == fds[k].fd)
                hear(play, &play->peers[k]);
    }
    pthread_mutex_unlock(&play->lock);
    return NULL;
}

/* ---- the test's side ----------------------------------------------------------------- */

void play_open(struct play *play)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);

    memset(play, 0, sizeof(*play));
    for (size_t k = 0; k < PLAY_PEERS; k++)
        play->peers[k].fd = -1;
    play->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(play->listener >= 0);
    must(bind(play->listener, (struct sockaddr *)&at, len) == 0);
    must(listen(play->listener, 64) == 0);
    must(getsockname(play->listener, (struct sockaddr *)&at, &len) == 0);
    play->port = ntohs(at.sin_port);
    must(pipe(play->wake) == 0);
    pthread_mutex_init(&play->lock, NULL);
    pthread_cond_init(&play->changed, NULL);
    play->running = true;
    must(pthread_create(&play->thread, NULL, run, play) == 0);
}

void play_die(struct play *play)
{
    if (!play->running)
        return;
    pthread_mutex_lock(&play->lock);
    play->running = false;
    pthread_mutex_unlock(&play->lock);
    must(write(play->wake[1], "x", 1) == 1);
    pthread_join(play->thread, NULL);
    close(play->listener);
    for (size_t k = 0; k < PLAY_PEERS; k++)
        if (play->peers[k].fd >= 0)
            leave(play, &play->peers[k]);
}

void play_close(struct play *play)
{
    play_die(play);
    close(play->wake[0]);
    close(play->wake[1]);
    pthread_cond_destroy(&play->changed);
    pthread_mutex_destroy(&play->lock);
}

void play_rule(struct play *play, const char *command, const char *reply, int times)
{
    pthread_mutex_lock(&play->lock);
    must(play->rule_count < PLAY_RULES);
    play->rules[play->rule_count++] = (struct play_rule){command, reply, times};
    pthread_mutex_unlock(&play->lock);
}

void play_forget(struct play *play)
{
    pthread_mutex_lock(&play->lock);
    play->rule_count = 0;
    play->log_len = 0;
    play->log[0] = '\0';
    pthread_mutex_unlock(&play->lock);
}

const char *play_log(struct play *play)
{
    static char taken[PLAY_LOG];

    pthread_mutex_lock(&play->lock);
    memcpy(taken, play->log, play->log_len + 1);
    taken[play->log_len] = '\0';
    play->log_len = 0;
    play->log[0] = '\0';
    pthread_mutex_unlock(&play->lock);
    return taken;
}

void play_wait_left(struct play *play, int left)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&play->lock);
    while (play->left < left)
        must(pthread_cond_timedwait(&play->changed, &play->lock, &until) == 0);
    pthread_mutex_unlock(&play->lock);
}

int play_met(struct play *play)
{
    int met;

    pthread_mutex_lock(&play->lock);
    met = play->met;
    pthread_mutex_unlock(&play->lock);
    return met;
}
