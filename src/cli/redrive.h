/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax redrive, in two parts: redrive.c takes, judges and puts back; redrive_open.c reads the settings and opens
 * what it works with.
 */
#ifndef HAPAX_CLI_REDRIVE_H
#define HAPAX_CLI_REDRIVE_H

#include "cli.h"

#include "door/consume/parts.h"

#define REDRIVE_HELD_MAX HAPAX_IN_HAND_MAX
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

enum fate { LEFT = 1, TO_SEND, SENT, DONE, FORGOTTEN };

struct item {
    struct item *next;
    struct hapax__delivered *delivered;
    enum fate fate;
    bool moved; /* goes to the end of its own topic, not to the target */
};

struct redriving {
    const struct redrive_args *args;
    char from[REDRIVE_URI_MAX]; /* with a group, where it needs one */
    char run[REDRIVE_RUN_MAX]; /* hapax-redrive of this run */
    struct hapax_message_header mark;
    struct hapax_policy policy; /* for hapax__message_ask() alone */
    struct hapax_consumer consumer; /* the same, and for the source */
    struct hapax__source *source;
    struct hapax__sink *sink;
    struct hapax__sink *back; /* NULL: the source takes letters back by itself */
    struct hapax__ask ask;
    int signals;
    struct item *first, **last; /* in the order they came */
    size_t held; /* not settled */
    size_t held_bytes;
    size_t busy; /* TO_SEND or SENT */
    uint64_t seen, put_back, left, again;
    uint64_t voided; /* of the source's, that were noted */
    bool full; /* no more are taken */
    bool stopped; /* by a signal */
    int64_t event_us; /* when something happened last */
};

/* Says a failure; returns exit. */
enum cli_exit redrive_failed(const struct redriving *redriving, enum cli_exit exit,
                             enum hapax_error error, const char *text);

/* Checks the settings, and opens source, sinks and ask, which connect to nobody yet. Says what is wrong; what was opened
 * by then is the caller's to close. */
enum cli_exit redrive_open(struct redriving *redriving);

#endif
