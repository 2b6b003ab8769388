/* SPDX-License-Identifier: Apache-2.0
 *
 * What `hapax top` and the first page of `hapax web` show: the totals of a store, and the doors
 * that are watched.
 */
#ifndef HAPAX_CLI_BOARD_H
#define HAPAX_CLI_BOARD_H

#include "totals.h"
#include "watch.h"

struct board {
    const struct cli_args *args;
    struct watch watches[WATCH_MAX];
    size_t n;
    struct totals totals;
    enum hapax_error error; /* of the last look at the store */
    char text[HAPAX_TEXT_MAX]; /* what failed then */
};

/* keep: an hour of the doors' rates is kept. What fails is printed. */
enum cli_exit board_open(struct board *board, const struct cli_args *args,
                         const struct cli_texts *urls, bool keep);
void board_close(struct board *board);

/* Looks at the store. store NULL: it is not open, and board->error and text say why. */
void board_look(struct board *board, struct hapax_store *store);

/* Prints all of it as one object. points: with the doors' readings that came after since_us. */
void board_json(const struct board *board, FILE *out, bool points, int64_t since_us);

#endif
