/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax redrive: redrive_open.c reads the settings and opens source, sinks and ask; redrive.c
 * takes, judges and puts back.
 */
#ifndef HAPAX_CLI_REDRIVE_H
#define HAPAX_CLI_REDRIVE_H

#include "cli.h"

#include "broker/publish.h"
#include "broker/sink.h"
#include "door/consume/ask.h"

#define REDRIVE_KEPT_MAX HAPAX_IN_HAND_MAX
#define REDRIVE_URI_MAX  4096u
#define REDRIVE_RUN_MAX  48u

struct redrive_args {
    struct cli_args args;
    const char *from;
    const char *to;
    const char *scope;
    const char *key;
    const char *key_from;
    int64_t limit;
    bool all;
    bool dry_run;
};

enum item_state { LEFT = 1, PUBLISHING, DONE, FORGOTTEN };

struct item {
    struct item *next;
    struct hapax__delivered *delivered;
    enum item_state state;
    struct hapax__letter letter;
    struct hapax__publication publication;
    bool moved; /* goes to the end of its own topic, not to the target */
};

/* A sink, and the letters on their way to it. */
struct redrive_target {
    struct hapax__sink *sink; /* NULL: not opened */
    struct hapax__publisher publisher;
};

struct redriving {
    const struct redrive_args *args;
    char from[REDRIVE_URI_MAX]; /* with a group, where it needs one */
    char run[REDRIVE_RUN_MAX]; /* hapax-redrive of this run */
    struct hapax_message_header mark;
    struct hapax_policy policy; /* for hapax__message_ask() alone */
    struct hapax_consumer consumer; /* the same, and for the source */
    struct hapax__source *source;
    struct redrive_target to;
    /* Kafka: the letters' own topic. No sink: the source takes letters back. */
    struct redrive_target back;
    struct hapax__ask ask;
    int signals;
    struct item *first, **last; /* in the order they came */
    size_t kept; /* items whose delivery is not released */
    size_t kept_bytes;
    size_t busy; /* PUBLISHING */
    uint64_t seen, put_back, left, again;
    uint64_t voided; /* of the source's, that were noted */
    bool full; /* no more are taken */
    bool stopped; /* by a signal */
    int64_t event_us; /* when something happened last */
};

/* Checks the settings, and opens source, sinks and ask. None connects yet. A failure is printed;
 * what was opened by then is the caller's to close. */
enum cli_exit redrive_open(struct redriving *redriving);

#endif
