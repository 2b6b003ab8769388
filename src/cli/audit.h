/* SPDX-License-Identifier: Apache-2.0
 *
 * The trail of operators' acts: a line before each act, and one with its end. The lines go to the
 * system's log (LOG_AUTHPRIV), and to a file where one is named. A line says who acts by the
 * system's word: the user of the process, and the user who logged in, whom su and sudo do not
 * change. What was typed in --by is a note.
 *
 * The first line is written before the store is asked. Where the file does not take that line,
 * nothing is done. Where it does not take the other one, stderr says so. Rejected: one line
 * afterwards. A process that is killed in between would leave no trace of a record that it forgot.
 */
#ifndef HAPAX_CLI_AUDIT_H
#define HAPAX_CLI_AUDIT_H

#include "cli.h"

struct audit {
    const struct cli_args *args;
    const char *path; /* NULL: no file */
    int fd;
};

/* Opens `path`, or else the file that HAPAX_AUDIT_FILE names, if any. audit_end() is needed after
 * CLI_DONE only. */
enum cli_exit audit_begin(struct audit *audit, const struct cli_args *args, const char *path);

/* Whether anything takes the lines. */
bool audit_is_kept(const struct audit *audit);

/* Before op, a RESOLVE: what it is, and the record that stands there. found: what a READ gave,
 * HAPAX_ERR_CORRUPT for a record that cannot be read. */
enum cli_exit audit_asked(const struct audit *audit, const struct hapax_op *op,
                          const struct hapax_record *before, enum hapax_error found);

/* After op: how it ended. */
void audit_answered(const struct audit *audit, const struct hapax_op *op);

/* One of the same two lines of an erasure: of whom, in which scope (empty: all), and how it ended;
 * NULL: it is to be done, which only CLI_DONE allows. The owner is shown by its digest. */
enum cli_exit audit_erase(const struct audit *audit, const struct hapax_op *list, const char *end);

/* The same of what puts back all messages of an outbox, or dead letters of `from`; NULL: of the
 * outbox. */
enum cli_exit audit_put_back(const struct audit *audit, const char *by, const char *from,
                             const char *end);

/* The same of a switch; scope NULL: of the whole store. */
struct audit_switched {
    const char *scope;
    const char *by;
    const char *was, *to;
};
enum cli_exit audit_switch(const struct audit *audit, const struct audit_switched *act,
                           const char *end);

/* Closes the file. exit: how the act ended. Says on stderr where neither a file nor the system's
 * log took its lines, and first whether the act is done. */
void audit_end(struct audit *audit, enum cli_exit exit);

#endif
