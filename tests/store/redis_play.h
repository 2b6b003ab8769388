/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that play Redis processes: each answers from a list of rules, in order, and notes the
 * commands it got. No memory is allocated, so that a test can fail every allocation of the code
 * under test.
 */
#ifndef HAPAX_TESTS_REDIS_PLAY_H
#define HAPAX_TESTS_REDIS_PLAY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAY_RULES 24u
#define PLAY_PEERS 16u
#define PLAY_LOG   65536u

/* A command takes the first rule whose `command` it begins with (words separated by single
 * spaces) and that has `times` left. Where no rule fits, the answer is +OK. */
struct play_rule {
    const char *command;
    const char
        *reply; /* RESP. CUT at its end: then the connection is closed. HANG: no answer at all. */
    int times; /* 0: any number */
};

#define CUT  "!"
#define HANG "~"

struct play_peer {
    int fd; /* -1: free */
    size_t len;
    char bytes[65536];
};

struct play {
    uint16_t port;
    int listener; /* -1: nobody is there */
    int wake[2];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct play_rule rules[PLAY_RULES];
    size_t rule_count;
    struct play_peer peers[PLAY_PEERS];
    int met; /* connections accepted */
    int left; /* connections closed, by whom ever */
    char log[PLAY_LOG]; /* the commands but those of the login, each ended by ';' */
    size_t log_len;
    bool running;
};

/* Listens on a free port of 127.0.0.1, and plays. */
void play_open(struct play *play);
void play_close(struct play *play);

/* Closes its listener and all its connections: as a process that was killed. */
void play_die(struct play *play);

/* Adds a rule behind those there are; strings are borrowed. */
void play_rule(struct play *play, const char *command, const char *reply, int times);

/* Forgets all rules and all that was noted. */
void play_forget(struct play *play);

/* Gives the log so far, and empties it: for assert_string_equal(). */
const char *play_log(struct play *play);

/* Waits until so many connections have been closed. */
void play_wait_left(struct play *play, int left);

int play_met(struct play *play);

#endif
