/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax web, inside: the guard (who may ask), the API (what is answered), and what both know.
 */
#ifndef HAPAX_CLI_WEB_H
#define HAPAX_CLI_WEB_H

#include "board.h"
#include "http/site.h"

#include <pthread.h>

#define WEB_TOKEN_SIZE  33u /* 32 hex digits */
#define WEB_URIS_MAX    2048u
#define WEB_LETTERS_MAX 16u

struct web_guard;

/* Dead letters, and where they are put back. */
struct web_letters {
    char uris[WEB_URIS_MAX]; /* both, each ended by a NUL */
    const char *from, *to; /* in uris */
    char from_shown[HAPAX_TEXT_MAX], to_shown[HAPAX_TEXT_MAX];
};

struct web {
    const struct cli_args *args;
    bool may_resolve;
    struct web_guard *guard;
    const struct web_letters *letters;
    size_t letters_n;
    pthread_mutex_t redriving; /* of dead letters: one run at a time, and no store in it */
    int ending; /* can be read once the process is to end */
    /* Of the store, and of all that a command uses: one request at a time. */
    pthread_mutex_t one;
    struct hapax_store *store; /* NULL: not opened yet */
    int64_t looked_us; /* when board->totals were read */
    /* Of the doors' readings; taken after `one`. */
    pthread_mutex_t doors;
    struct board *board;
};

/* ---- the guard (web_guard.c) -------------------------------------------------------------- */

struct web_rules {
    const char *password_file; /* NULL: none */
    const char *user_header; /* NULL: none */
    const struct cli_texts *names; /* under which the page is asked for, besides the loopback's */
};

/* Opens a guard; rules are borrowed. What is wrong with the file is printed. */
enum cli_exit web_guard_open(struct web_guard **out, const struct cli_args *args,
                             const struct web_rules *rules);
void web_guard_close(struct web_guard *guard); /* NULL: does nothing */

/* The token that each POST has to bring. */
const char *web_guard_token(const struct web_guard *guard);

/* Whether a request may be answered. who: the name of whoever asks, "" where nobody has to log in.
 * False: *reply says why. */
bool web_guard_admits(struct web_guard *guard, char who[HAPAX_BY_MAX + 1],
                      const struct hapax__site_request *request, struct hapax__site_reply *reply);

/* ---- the API (web_api.c) ------------------------------------------------------------------ */

/* Answers a request; of several threads. */
void web_answer(struct hapax__site_reply *reply, const struct hapax__site_request *request,
                void *arg);

#endif
