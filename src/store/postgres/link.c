/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection, and how a statement on it ended.
 *
 * The invariant: ROLLED_BACK means surely not committed, DONE means committed. The server sends
 * rows and even "command complete" before it commits. The proof is its "ready for query": after
 * that libpq reports no more results. An error of severity ERROR means that the transaction was
 * rolled back, since the server cannot raise one after the commit. A FATAL one may have come in
 * between, and one of a pooler (class 08) is about the pooler's own connection: both are as good as
 * no answer.
 *
 * A late statement is left alone, and its connection is dropped. Cancelling it could do harm. Where
 * a commit waits for a synchronous standby, a cancel ends the wait: the record is seen before the
 * standby has it, and a repeat of the op gets an answer that a failover may lose. hapax.run()
 * itself bounds the waits for locks, which could keep a statement waiting for long.
 *
 * The hosts of a URI are tried here and not by libpq. Without blocking libpq has no time-out per
 * host: a host that takes connections and never answers would hide the others for ever.
 */
#include "link.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PAUSE_MIN_US (50 * US_PER_MS)
#define PAUSE_MAX_US (1000 * US_PER_MS)
#define KEYWORDS_MAX 96u
#define VALUE_MAX    512u
#define CUTS_MAX     3u /* connections in a row that are ended before they are of use */

/* ---- texts --------------------------------------------------------------------------- */

/* Begins the text in lower case, as the server's own texts do, and cuts it at its first line. */
static void set_text(struct hapax__pg_link *link, const char *why)
{
    size_t len = strcspn(why, "\n");
    bool capital = len > 1 && isupper((unsigned char)why[0]) && islower((unsigned char)why[1]);

    (void)hapax__fail(link->text, HAPAX_ERR_NONE, "%.100s: %c%.*s", link->at,
                      capital  ? tolower((unsigned char)why[0])
                      : why[0] ? why[0]
                               : '?',
                      len > 0 ? (int)len - 1 : 0, why + (len > 0));
}

static bool is_state(const char *at)
{
    for (size_t i = 0; i < HAPAX__PG_STATE_LEN; i++)
        if (!isdigit((unsigned char)at[i]) && !isupper((unsigned char)at[i]))
            return false;
    return strncmp(at + HAPAX__PG_STATE_LEN, ": ", 2) == 0;
}

/* Takes libpq's message about a failed connection. It has several lines; the last error of a server
 * is "SEVERITY:  SQLSTATE: text", others are "connection to server at … failed: text". */
static void take_message(struct hapax__pg_link *link, const char *message)
{
    static const char failed[] = " failed: ";
    const char *why = message;

    link->sqlstate[0] = '\0';
    for (const char *at = strstr(message, ":  "); at; at = strstr(at + 3, ":  "))
        if (is_state(at + 3)) {
            memcpy(link->sqlstate, at + 3, HAPAX__PG_STATE_LEN);
            link->sqlstate[HAPAX__PG_STATE_LEN] = '\0';
            why = at + 3 + HAPAX__PG_STATE_LEN + 2;
        }
    if (link->sqlstate[0] == '\0' && strstr(message, failed))
        why = strstr(message, failed) + strlen(failed);
    set_text(link, why);
}

/* Sets the name of the server for texts. */
static void name(struct hapax__pg_link *link, const char *host, const char *port)
{
    (void)snprintf(link->at, sizeof(link->at), "postgres \"%.80s:%.8s\"",
                   host && *host ? host : "local", port && *port ? port : "5432");
}

/* ---- waiting ------------------------------------------------------------------------- */

static bool wait_for(PGconn *conn, short events, int64_t deadline_us)
{
    struct pollfd fd = {.fd = PQsocket(conn), .events = events};

    assert(fd.fd >= 0);
    for (;;) {
        int64_t left_us = deadline_us - hapax__monotonic_us();

        if (left_us <= 0)
            return false;
        /* An error of the socket counts as ready: libpq finds it. */
        if (poll(&fd, 1, (int)hapax__least(left_us / US_PER_MS + 1, 60000)) != 0 && errno != EINTR)
            return true;
        if (fd.revents != 0)
            return true;
    }
}

/* Sleeps until the moment, or the deadline: false then. */
static bool sleep_until(int64_t moment_us, int64_t deadline_us)
{
    for (;;) {
        int64_t now_us = hapax__monotonic_us();

        if (now_us >= moment_us)
            return true;
        if (now_us >= deadline_us)
            return false;
        poll(NULL, 0, (int)((hapax__least(moment_us, deadline_us) - now_us) / US_PER_MS + 1));
    }
}

/* ---- connecting ---------------------------------------------------------------------- */

/* Notices are dropped, but for one that says that the server closes the connection. */
static void take_notice(void *arg, const PGresult *notice)
{
    struct hapax__pg_link *link = arg;
    const char *severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (!severity)
        severity = PQresultErrorField(notice, PG_DIAG_SEVERITY);
    if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        link->doomed = true;
}

void hapax__pg_drop(struct hapax__pg_link *link)
{
    int fd = link->conn ? PQsocket(link->conn) : -1;

    if (fd >= 0) /* otherwise PQfinish() sends the rest of a half-sent statement */
        (void)shutdown(fd, SHUT_RDWR);
    PQfinish(link->conn);
    link->conn = NULL;
    link->doomed = false;
}

/* Copies the i-th value of a list to out; a list of one value stands for all. */
static const char *pick(char out[VALUE_MAX], const char *list, size_t i)
{
    size_t len = strcspn(list, ",");

    for (; i > 0 && list[len] == ','; i--) {
        list += len + 1;
        len = strcspn(list, ",");
    }
    (void)snprintf(out, VALUE_MAX, "%.*s", (int)len, list);
    return out;
}

struct keywords {
    const char *names[KEYWORDS_MAX];
    const char *values[KEYWORDS_MAX];
    char host[VALUE_MAX], address[VALUE_MAX], port[VALUE_MAX];
};

static void fill(struct keywords *out, const struct hapax__pg_link *link, size_t host)
{
    size_t n = 0;

    out->names[n] = "fallback_application_name";
    out->values[n++] = "hapax";
    for (const PQconninfoOption *option = link->uri.options; option->keyword; option++) {
        const char *value = option->val;

        if (!value)
            continue;
        if (strcmp(option->keyword, "host") == 0 && link->uri.hosts > 1)
            value = pick(out->host, value, host);
        else if (strcmp(option->keyword, "hostaddr") == 0 && link->uri.hosts > 1)
            value = pick(out->address, value, host);
        else if (strcmp(option->keyword, "port") == 0 && link->uri.hosts > 1)
            value = pick(out->port, value, host);
        assert(n + 2 < KEYWORDS_MAX);
        out->names[n] = option->keyword; /* of two by one name, libpq takes the later */
        out->values[n++] = value;
    }
    out->names[n] = "client_encoding"; /* whatever the environment says: our texts are UTF-8 */
    out->values[n++] = "UTF8";
    out->names[n] = NULL;
    out->values[n] = NULL;
}

static enum hapax_error dial_failed(struct hapax__pg_link *link)
{
    take_message(link, PQerrorMessage(link->conn));
    return strncmp(link->sqlstate, "28", 2) == 0 || strncmp(link->sqlstate, "3D", 2) == 0 ||
                   strcmp(link->sqlstate, "42501") == 0
               ? HAPAX_ERR_REFUSED
               : HAPAX_ERR_UNAVAILABLE;
}

/* A database in SQL_ASCII may hold any bytes. A client in UTF-8 gets an error from it instead of
 * those that are no UTF-8. */
static enum hapax_error take_any_bytes(struct hapax__pg_link *link, int64_t deadline_us)
{
    const char *encoding = PQparameterStatus(link->conn, "server_encoding");
    PGresult *rows;

    if (!encoding || strcmp(encoding, "SQL_ASCII") != 0)
        return HAPAX_ERR_NONE;
    if (hapax__pg_exec(link, "SET client_encoding = 'SQL_ASCII'", NULL, deadline_us, &rows) !=
        HAPAX__PG_DONE)
        return HAPAX_ERR_UNAVAILABLE;
    PQclear(rows);
    return HAPAX_ERR_NONE;
}

static enum hapax_error dial(struct hapax__pg_link *link, size_t host, int64_t deadline_us)
{
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    struct keywords keywords;

    fill(&keywords, link, host);
    link->conn = PQconnectStartParams(keywords.names, keywords.values, 0);
    if (!link->conn)
        return hapax__fail(link->text, HAPAX_ERR_NOMEM, "postgres: out of memory");
    name(link, PQhost(link->conn), PQport(link->conn));
    if (PQstatus(link->conn) == CONNECTION_BAD)
        return dial_failed(link);
    (void)PQsetNoticeReceiver(link->conn, take_notice, link);
    (void)PQsetErrorVerbosity(link->conn, PQERRORS_VERBOSE); /* the one way to its SQLSTATE */
    while (next != PGRES_POLLING_OK) {
        if (!wait_for(link->conn, next == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline_us)) {
            link->sqlstate[0] = '\0';
            set_text(link, "no answer in time");
            return HAPAX_ERR_UNAVAILABLE;
        }
        next = PQconnectPoll(link->conn);
        if (next == PGRES_POLLING_FAILED)
            return dial_failed(link);
    }
    if (PQsetnonblocking(link->conn, 1) != 0)
        return dial_failed(link);
    return take_any_bytes(link, deadline_us);
}

/* "Terminating connection due to administrator command", not "the system is shutting down". */
static bool was_ended(const struct hapax__pg_link *link)
{
    return strcmp(link->sqlstate, "57P01") == 0;
}

/* Asks whether the server is a primary whose schema serves us, and what the role may do. */
static enum hapax_error greet(struct hapax__pg_link *link, int64_t deadline_us)
{
    static const char sql[] =
        "SELECT " HAPAX__PG_ASK ", pg_catalog.pg_is_in_recovery(),"
        " (SELECT pg_catalog.bool_or(p.proname OPERATOR(pg_catalog.=) 'door')"
        "   AND NOT pg_catalog.bool_or(p.proname OPERATOR(pg_catalog.=) 'run')"
        "  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n"
        "   ON n.oid OPERATOR(pg_catalog.=) p.pronamespace"
        "  WHERE n.nspname OPERATOR(pg_catalog.=) 'hapax'"
        "  AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))";
    PGresult *rows = NULL;
    enum hapax_error error = HAPAX_ERR_NONE;
    enum hapax__pg_end end = hapax__pg_exec(link, sql, NULL, deadline_us, &rows);
    long version;

    if (end == HAPAX__PG_ROLLED_BACK) {
        error = hapax__pg_error_of(link->sqlstate);
        if (PQserverVersion(link->conn) > 0 && PQserverVersion(link->conn) < 140000)
            set_text(link, "this PostgreSQL is too old (14 or newer)");
        else if (strcmp(link->sqlstate, "42883") == 0)
            set_text(link,
                     "the schema \"hapax\" has no function \"version\" for programs: it is of "
                     "version 5 or older (run \"hapax init\"), or not Hapax's");
        else if (error == HAPAX_ERR_UNSUPPORTED)
            set_text(link, "there is no schema \"hapax\" (run \"hapax init\")");
        return error;
    }
    if (end != HAPAX__PG_DONE) {
        link->cut |= end == HAPAX__PG_LOST && (link->sqlstate[0] == '\0' || was_ended(link));
        return HAPAX_ERR_UNAVAILABLE;
    }
    version = strtol(PQgetvalue(rows, 0, 0), NULL, 10);
    link->door = PQgetvalue(rows, 0, 2)[0] == 't';
    if (PQgetvalue(rows, 0, 1)[0] != 'f') {
        set_text(link, "it is a standby");
        error = HAPAX_ERR_UNAVAILABLE;
    } else if (version != HAPAX__PG_VERSION) {
        error = hapax__fail(
            link->text, HAPAX_ERR_UNSUPPORTED,
            "%.100s: its schema \"hapax\" is of version %ld, this is for version %d (%s)", link->at,
            version, HAPAX__PG_VERSION,
            version < HAPAX__PG_VERSION ? "run \"hapax init\"" : "use a newer Hapax");
    }
    PQclear(rows);
    return error;
}

static enum hapax_error try_host(struct hapax__pg_link *link, size_t host, int64_t deadline_us)
{
    enum hapax_error error = dial(link, host, deadline_us);

    link->cut |= error == HAPAX_ERR_UNAVAILABLE && was_ended(link);
    if (error == HAPAX_ERR_NONE && !link->bare)
        error = greet(link, deadline_us);
    if (error != HAPAX_ERR_NONE)
        hapax__pg_drop(link);
    else
        link->host = host;
    return error;
}

/* Tries each host once, each with its share of the time left. A host may accept what another
 * refuses. Of all failures the text is that of the first that will not pass by itself. */
static enum hapax_error try_hosts(struct hapax__pg_link *link, int64_t deadline_us)
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE, worst = HAPAX_ERR_UNAVAILABLE;
    size_t hosts = link->uri.hosts, first = link->host;
    char text[HAPAX_TEXT_MAX] = "";

    for (size_t i = 0; i < hosts; i++) {
        int64_t now_us = hapax__monotonic_us();
        int64_t share_us = (deadline_us - now_us) / (int64_t)(hosts - i);

        error = try_host(link, (first + i) % hosts, now_us + share_us);
        if (error == HAPAX_ERR_NONE)
            return error;
        if (error != HAPAX_ERR_UNAVAILABLE && worst == HAPAX_ERR_UNAVAILABLE) {
            memcpy(text, link->text, sizeof(text));
            worst = error;
        }
    }
    if (text[0])
        memcpy(link->text, text, sizeof(text));
    return worst;
}

/* Sets the next try to half of the pause up to one and a half of it, so that clients that lost a
 * server together do not come back together. */
static void back_off(struct hapax__pg_link *link)
{
    int64_t now_us = hapax__monotonic_us();

    link->pause_us =
        hapax__least(link->pause_us > 0 ? 2 * link->pause_us : PAUSE_MIN_US, PAUSE_MAX_US);
    link->random = (link->random ^ (uint64_t)now_us ^ (uintptr_t)link) * 0x9e3779b97f4a7c15u;
    link->not_before_us =
        now_us + link->pause_us / 2 + (int64_t)((link->random >> 33) % (uint64_t)link->pause_us);
}

/* Whether the server has ended an idle connection, as far as this is known without asking. */
static bool stale(struct hapax__pg_link *link)
{
    struct pollfd fd = {.fd = PQsocket(link->conn), .events = POLLIN};

    while (fd.fd >= 0 && PQstatus(link->conn) == CONNECTION_OK && !link->doomed) {
        if (poll(&fd, 1, 0) == 0)
            return false;
        if (!PQconsumeInput(link->conn) || PQisBusy(link->conn))
            return true;
    }
    return true;
}

enum hapax_error hapax__pg_connect(struct hapax__pg_link *link, int64_t deadline_us, bool patient)
{
    enum hapax_error error;
    unsigned cuts = 0;

    if (link->conn && !stale(link))
        return HAPAX_ERR_NONE;
    hapax__pg_drop(link);
    do {
        if (!sleep_until(link->not_before_us, deadline_us))
            return HAPAX_ERR_UNAVAILABLE; /* text says what failed before */
        link->cut = false;
        error = try_hosts(link, deadline_us);
        if (error != HAPAX_ERR_NONE)
            back_off(link);
        cuts += link->cut;
    } while (error == HAPAX_ERR_UNAVAILABLE && (patient || (link->cut && cuts < CUTS_MAX)) &&
             hapax__monotonic_us() < deadline_us);
    assert(!error == !!link->conn);
    return error;
}

/* ---- statements ---------------------------------------------------------------------- */

static enum hapax__pg_end lost(struct hapax__pg_link *link, enum hapax__pg_end end, const char *why)
{
    if (why)
        set_text(link, why);
    hapax__pg_drop(link);
    back_off(link);
    return end;
}

static bool send_statement(PGconn *conn, const char *sql, const struct hapax__pg_params *params)
{
    static const int binary[HAPAX__PG_PARAMS_MAX] = {[0 ... HAPAX__PG_PARAMS_MAX - 1] = 1};

    if (!params)
        return PQsendQuery(conn, sql);
    assert(params->n <= (int)HAPAX__PG_PARAMS_MAX);
    return PQsendQueryParams(conn, sql, params->n, params->types, params->values, params->lengths,
                             binary, 1);
}

/* Waits for the next result; *out NULL: the last was the end. False: the time is over. */
static bool next_result(PGconn *conn, PGresult **out, int64_t deadline_us)
{
    int unsent = 1;

    while (unsent == 1 || PQisBusy(conn)) {
        if (unsent == 1)
            unsent = PQflush(conn);
        if (unsent != 1 && !PQisBusy(conn))
            break;
        if (!wait_for(conn, unsent == 1 ? POLLIN | POLLOUT : POLLIN, deadline_us))
            return false;
        if (!PQconsumeInput(conn)) /* PQgetResult() gives the error */
            break;
    }
    *out = PQgetResult(conn);
    return true;
}

/* Whether the server itself raised this error, which rolled the transaction back. Sets sqlstate. */
static bool rolled_back(struct hapax__pg_link *link, const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (!severity)
        severity = PQresultErrorField(result, PG_DIAG_SEVERITY);
    (void)snprintf(link->sqlstate, sizeof(link->sqlstate), "%s", state ? state : "");
    return severity && strcmp(severity, "ERROR") == 0 && strlen(link->sqlstate) == 5 &&
           strncmp(link->sqlstate, "08", 2) != 0;
}

/* Sets the text to that of an error, if the server gives one. */
static void take_error(struct hapax__pg_link *link, const PGresult *result)
{
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    set_text(link, message ? message : PQerrorMessage(link->conn));
}

/* A session of a pooler's may be one where another client has listened. libpq keeps notifications
 * until somebody takes them. */
static void drop_notifications(PGconn *conn)
{
    PGnotify *notify;

    while ((notify = PQnotifies(conn)) != NULL)
        PQfreemem(notify);
}

static enum hapax__pg_end collect(struct hapax__pg_link *link, int64_t deadline_us, PGresult **out)
{
    enum hapax__pg_end end = HAPAX__PG_DONE;

    for (;;) { /* until the server is ready for another statement, or the time is over */
        PGresult *result;

        if (!next_result(link->conn, &result, deadline_us))
            return lost(link, HAPAX__PG_LATE, "no answer in time");
        if (!result)
            break;
        if (PQresultStatus(result) == PGRES_TUPLES_OK ||
            PQresultStatus(result) == PGRES_COMMAND_OK) {
            PQclear(*out);
            *out = result;
            continue;
        }
        if (end != HAPAX__PG_LOST) {
            end = rolled_back(link, result) ? HAPAX__PG_ROLLED_BACK : HAPAX__PG_LOST;
            take_error(link, result);
        }
        PQclear(result);
    }
    drop_notifications(link->conn);
    if (end == HAPAX__PG_LOST)
        return lost(link, end, NULL);
    if (PQstatus(link->conn) != CONNECTION_OK)
        return lost(link, HAPAX__PG_LOST, PQerrorMessage(link->conn));
    if (end == HAPAX__PG_ROLLED_BACK && PQtransactionStatus(link->conn) == PQTRANS_INERROR)
        return lost(link, end, NULL); /* a script stopped; its transaction goes with the link */
    if (PQtransactionStatus(link->conn) != PQTRANS_IDLE)
        return lost(link, HAPAX__PG_LOST, "it left a transaction open");
    link->pause_us = 0;
    link->not_before_us = 0;
    return end;
}

enum hapax__pg_end hapax__pg_exec(struct hapax__pg_link *link, const char *sql,
                                  const struct hapax__pg_params *params, int64_t deadline_us,
                                  PGresult **out)
{
    enum hapax__pg_end end;

    assert(link->conn);
    *out = NULL;
    link->sqlstate[0] = '\0';
    if (!send_statement(link->conn, sql, params))
        return lost(link, HAPAX__PG_LOST, PQerrorMessage(link->conn));
    end = collect(link, deadline_us, out);
    if (end != HAPAX__PG_DONE) {
        PQclear(*out);
        *out = NULL;
    }
    return end;
}

/* ---- what errors mean ---------------------------------------------------------------- */

static const struct {
    const char *prefix; /* of SQLSTATEs; the first that fits */
    enum hapax_error error;
} meanings[] = {
    {"25006", HAPAX_ERR_UNAVAILABLE}, /* read-only: a standby, or on its way to be one */
    {"28", HAPAX_ERR_REFUSED}, /* the login */
    {"3D000", HAPAX_ERR_REFUSED}, /* no such database */
    {"42501", HAPAX_ERR_REFUSED}, /* no permission */
    {"3F000", HAPAX_ERR_UNSUPPORTED}, /* no schema */
    {"42", HAPAX_ERR_UNSUPPORTED}, /* no table, no function, another signature */
    {"HX", HAPAX_ERR_UNSUPPORTED}, /* Hapax's own */
    {"0A", HAPAX_ERR_UNSUPPORTED},
    {"22", HAPAX_ERR_CORRUPT}, /* a value that the functions do not expect: in a record */
    {"23", HAPAX_ERR_CORRUPT},
    {"XX001", HAPAX_ERR_CORRUPT}, /* a damaged page, table or index */
    {"XX002", HAPAX_ERR_CORRUPT},
};

enum hapax_error hapax__pg_error_of(const char *sqlstate)
{
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
        if (hapax__text_begins(sqlstate, meanings[i].prefix))
            return meanings[i].error;
    return HAPAX_ERR_UNAVAILABLE; /* rolled back, for any other reason */
}

bool hapax__pg_transient(const char *sqlstate)
{
    return strcmp(sqlstate, "40001") == 0 || strcmp(sqlstate, "40P01") == 0;
}

bool hapax__pg_leave_host(struct hapax__pg_link *link, unsigned *left)
{
    if (strcmp(link->sqlstate, "25006") != 0)
        return false;
    hapax__pg_drop(link);
    link->host = (link->host + 1) % link->uri.hosts;
    return ++*left < link->uri.hosts;
}
