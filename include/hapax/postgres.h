/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres.h: run each logical request once, in the transaction that holds its effect.
 *
 * hapax.h says what no store can promise: an effect outside the store is not part of the claim.
 * Where the effect is rows of the PostgreSQL database that also keeps the records, it is part of
 * the claim. The claim, the handler's statements and the completion are one transaction: they are
 * committed together, or nothing happened, wherever a process, a connection or the server dies. So
 * there are always as many business rows as completed operations.
 *
 *     enum hapax_class transfer(PGconn *conn, struct hapax_attempt *attempt, void *order)
 *     {
 *         … PQexecParams(conn, "UPDATE accounts …") …
 *         hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("moved"));
 *         return HAPAX_CLASS_FINAL;
 *     }
 *     hapax_pg_execute(conn, &policy, &request, transfer, order, &answer, text);
 *
 * The database must have the schema `hapax` (`hapax init --store postgres://…`), and the user of
 * the connection the rights of an executor (`--role executor=NAME`, docs/postgres.md). Programs
 * that use this link with libpq, too. Other languages have the same by SQL: hapax.begin() and
 * hapax.complete().
 */
#ifndef HAPAX_POSTGRES_H
#define HAPAX_POSTGRES_H

#include <hapax/hapax.h>
#include <libpq-fe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Runs its statements on conn, the connection given to hapax_pg_execute(), and on no other: an
 * effect elsewhere is not part of the transaction. It may use savepoints of its own. It may call
 * hapax_pg_execute() for another operation, or hapax_step(); these join, and are committed or
 * rolled back with it. It must not end the transaction.
 *
 * Returns how it ended. FINAL: its rows stay. Anything else: its rows are rolled back, and the end
 * is recorded as the policy says:
 *   NOT_RUN, or FAILED under on_failed=retry    the next caller runs
 *   FAILED under `replay`                       the outcome is kept for every repeat
 *   FAILED under `hold`                         the operation waits for an operator
 *   UNKNOWN under on_expired=hold               the same
 *   UNKNOWN under `rerun`                       the claim is left to its lease
 * UNKNOWN is for effects outside the database; inside there is no unknown end. A FINAL counts as
 * FAILED where the handler left the transaction failed (it ignored a statement's error), or where
 * deferred constraints are broken (checked here if the transaction is Hapax's). A handler that met
 * a serialization failure or a deadlock (40001, 40P01) should return NOT_RUN: none of its work is
 * left, and the call may be made again. */
typedef enum hapax_class hapax_pg_handler(PGconn *conn, struct hapax_attempt *attempt, void *arg);

/* Runs handler(conn, attempt, arg) at most once per operation and gives the operation's answer.
 *
 * conn is borrowed for the call, and no other thread may use it meanwhile. Its state decides:
 *   idle          the transaction is Hapax's: BEGIN to COMMIT, at the session's isolation level.
 *                 When the call returns, the answer is durable (answer.recorded).
 *   in a          joined, between two savepoints: nothing is committed, and FRESH has `recorded`
 *   transaction   false. The answer holds once you commit. If you roll back, nothing happened, and
 *                 a retry runs. An error leaves the transaction as it was before the call, to go on
 *                 with, unless the connection is gone, or the first savepoint cannot be made.
 * In a failed transaction, in a COPY, in pipeline mode or with a query under way:
 * HAPAX_ERR_INVALID.
 *
 * A second caller of the key, while the first one's transaction is open: with wait_ms 0 it gets
 * IN_FLIGHT at once. Otherwise it waits that long for the end: committed → REPLAY, rolled back → it
 * runs. While it waits it has no lock of Hapax; yours, in a joined transaction, stay taken.
 *
 * Of the policy, on_store_error, run_max_ms, save_wait_ms and max_request do not matter here.
 * timeout_ms matters only where another client's statement has the record locked: the answer is
 * then STORE_DOWN. The transaction keeps the claim, so it needs no renewal; and where nothing can
 * be recorded nothing can be done. on_expired=reconcile is INVALID (there is no hook). The lease,
 * and `stale`, matter for records shared with other doors, and where a handler returned UNKNOWN.
 *
 * A secret (hapax_options.secret at other doors) is the session setting hapax.secret, in hex, as
 * for hapax.begin(): SET hapax.secret = '…', or the connection parameter
 * options='-c hapax.secret=…'.
 *
 * answer is yours on success, to be released, and zeroed on failure. On failure text says what
 * failed, and ends with the SQLSTATE in brackets where the server gave one:
 *   INVALID        a limit, the policy, or the state of conn: nothing was done
 *   NOMEM          no memory: nothing was done
 *   UNAVAILABLE    surely nothing was done; call again. The connection was lost before the handler
 *                  began, or between its end and COMMIT, or another statement of Hapax's failed:
 *                  for lack of a lock, or (40001, 40P01) because another transaction was faster, as
 *                  REPEATABLE READ and SERIALIZABLE intend. In a joined transaction roll back and
 *                  begin anew: its snapshot stays the old one
 *   INDETERMINATE  COMMIT was sent and no reply came, or the handler ended the transaction. Or the
 *                  connection was lost while the handler ran, or the server refused to leave the
 *                  handler's savepoint: only the server knows whether the handler sent COMMIT. Call
 *                  again with the same key on another connection: what was committed is the answer,
 *                  and where nothing was, the handler runs
 *   REFUSED        no rights on the schema, or another secret than the records are made with
 *   UNSUPPORTED    no schema `hapax` in this database, or one of another version
 *   CORRUPT        the record is damaged
 * Safe from any number of threads, each with a connection of its own. */
HAPAX_API enum hapax_error hapax_pg_execute(PGconn *conn, const struct hapax_policy *policy,
                                            const struct hapax_request *request,
                                            hapax_pg_handler *handler, void *arg,
                                            struct hapax_answer *answer, char text[HAPAX_TEXT_MAX]);

#ifdef __cplusplus
}
#endif
#endif
