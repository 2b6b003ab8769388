/* SPDX-License-Identifier: Apache-2.0
 *
 * A line is an object of JSON, the same in the log and in the file. It has the id of the operation,
 * never a key, a token or a body.
 */
#include "audit.h"

#include "print.h"

#include "json/write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define LOG_SOCKET "/dev/log"
#define NOBODY     UINT32_MAX /* of loginuid: nobody logged in, a service started the process */

enum cli_exit audit_begin(struct audit *audit, const struct cli_args *args, const char *path)
{
    *audit = (struct audit){.args = args, .path = path, .fd = -1};
    if (!audit->path)
        audit->path = getenv("HAPAX_AUDIT_FILE");
    if (audit->path && !*audit->path)
        audit->path = NULL;
    if (audit->path) {
        audit->fd = open(audit->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
        if (audit->fd < 0)
            return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                            "cannot open the audit file \"%s\": %s", audit->path, strerror(errno));
    }
    openlog("hapax", LOG_PID, LOG_AUTHPRIV);
    return CLI_DONE;
}

/* Whether a daemon reads the system's log. Its socket is of either type, and stays in its place
 * where the daemon has died. */
static bool log_is_read(void)
{
    static const int types[] = {SOCK_DGRAM, SOCK_STREAM};
    const struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = LOG_SOCKET};
    bool is_read = false;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && !is_read; i++) {
        int fd = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0);

        is_read = fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0;
        if (fd >= 0)
            close(fd);
    }
    return is_read;
}

bool audit_is_kept(const struct audit *audit)
{
    return audit->fd >= 0 || log_is_read();
}

void audit_end(struct audit *audit, enum cli_exit exit)
{
    if (!audit_is_kept(audit))
        (void)fprintf(stderr,
                      "hapax %s: %sthis act leaves no audit line: the system has no log (name a "
                      "file with --audit, or in HAPAX_AUDIT_FILE)\n",
                      audit->args->command->name, exit == CLI_DONE ? "done, but " : "");
    if (audit->fd >= 0)
        close(audit->fd);
    closelog();
}

/* ---- a line ---------------------------------------------------------------------------- */

static void put_name(struct hapax__json_out *out, const char *name)
{
    hapax__json_put(out, out->len > 0 ? ", \"" : "{\"");
    hapax__json_put(out, name);
    hapax__json_put(out, "\": ");
}

static void put_text(struct hapax__json_out *out, const char *name, struct hapax_span text)
{
    put_name(out, name);
    hapax__json_put_shown(out, text);
}

static void put_number(struct hapax__json_out *out, const char *name, int64_t number)
{
    put_name(out, name);
    hapax__json_put_number(out, number);
}

/* A user by name, or where he has none by number, as ps shows him. */
static void put_user(struct hapax__json_out *out, const char *name, uid_t uid)
{
    struct passwd room, *user = NULL;
    char bytes[1024], number[16];

    /* Acts of several threads of `hapax web` may write lines at a time. */
    (void)getpwuid_r(uid, &room, bytes, sizeof(bytes), &user);
    (void)snprintf(number, sizeof(number), "%u", (unsigned)uid);
    put_text(out, name, hapax_str(user ? user->pw_name : number));
}

/* Who logged in at first: the kernel keeps this through su and sudo. */
static uint32_t login_uid(void)
{
    FILE *file = fopen("/proc/self/loginuid", "re");
    uint32_t uid = NOBODY;

    if (file && fscanf(file, "%" SCNu32, &uid) != 1)
        uid = NOBODY;
    if (file)
        (void)fclose(file);
    return uid;
}

static const char *act_of(const struct hapax_op *op)
{
    switch (op->resolve) {
    case HAPAX_RESOLVE_COMPLETE:
        return "complete";
    case HAPAX_RESOLVE_FAIL:
        return "fail";
    case HAPAX_RESOLVE_FORGET:
        break;
    }
    return "forget";
}

static void put_who(struct hapax__json_out *out)
{
    char now[PRINT_TIME_MAX];
    uint32_t login = login_uid();

    print_time(now, (int64_t)time(NULL) * 1000000);
    put_text(out, "time", hapax_str(now));
    put_user(out, "user", getuid());
    if (login != NOBODY)
        put_user(out, "login", (uid_t)login);
}

/* What each line of an act says. */
static void put_act(struct hapax__json_out *out, const struct audit *audit,
                    const struct hapax_op *op)
{
    char id[PRINT_HEX_MAX];

    print_hex(id, op->id.bytes);
    put_who(out);
    put_text(out, "by", op->by);
    put_text(out, "store", hapax_str(audit->args->shown));
    put_text(out, "id", hapax_str(id));
    put_text(out, "act", hapax_str(act_of(op)));
    if (op->resolve == HAPAX_RESOLVE_COMPLETE)
        put_number(out, "status", op->outcome.status);
    if (op->force)
        put_text(out, "force", hapax_str("yes"));
}

static void put_before(struct hapax__json_out *out, const struct hapax_record *before,
                       enum hapax_error found)
{
    if (found == HAPAX_ERR_CORRUPT) {
        put_text(out, "was", hapax_str("damaged"));
        return;
    }
    put_text(out, "was", hapax_str(hapax_state_name(before->state)));
    if (before->state == HAPAX_STATE_ABSENT)
        return;
    put_text(out, "was_in", before->scope);
    put_number(out, "was_attempt", before->attempt);
    put_number(out, "was_status", before->outcome.status);
}

/* Writes the line. Returns 0, or the errno with which the file did not take it. */
static int put_line(const struct audit *audit, struct hapax__json_out *out)
{
    ssize_t written;

    hapax__json_put(out, "}");
    if (out->failed)
        return ENOMEM;
    syslog(LOG_NOTICE, "%s", out->bytes);
    if (audit->fd < 0)
        return 0;
    hapax__json_put(out, "\n");
    if (out->failed)
        return ENOMEM;
    written = write(audit->fd, out->bytes, out->len);
    if (written < 0)
        return errno;
    return (size_t)written < out->len ? ENOSPC : 0;
}

/* Writes one of the two lines of an act. end NULL: the first, without which nothing may be done. */
static enum cli_exit put(const struct audit *audit, struct hapax__json_out *out, const char *end)
{
    int error;

    put_text(out, "end", hapax_str(end ? end : "asked"));
    error = put_line(audit, out);
    hapax__json_free(out);
    if (error != 0 && !end)
        return cli_fail(audit->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "not done, since the audit file \"%s\" takes no line: %s",
                        audit->path ? audit->path : "", strerror(error));
    if (error != 0)
        (void)fprintf(stderr, "hapax %s: the audit file lacks how this act ended: %s\n",
                      audit->args->command->name, strerror(error));
    return CLI_DONE;
}

enum cli_exit audit_asked(const struct audit *audit, const struct hapax_op *op,
                          const struct hapax_record *before, enum hapax_error found)
{
    struct hapax__json_out out = {.to = NULL};

    put_act(&out, audit, op);
    put_before(&out, before, found);
    return put(audit, &out, NULL);
}

enum cli_exit audit_erase(const struct audit *audit, const struct hapax_op *list, const char *end)
{
    static const struct hapax_digest none;
    struct hapax__json_out out = {.to = NULL};
    char owner[PRINT_HEX_MAX];

    print_hex(owner, list->owner.bytes);
    put_who(&out);
    put_text(&out, "store", hapax_str(audit->args->shown));
    put_text(&out, "act", hapax_str("erase"));
    if (memcmp(&list->owner, &none, sizeof(none)) != 0)
        put_text(&out, "owner", hapax_str(owner));
    put_text(&out, "scope", list->scope);
    return put(audit, &out, end);
}

enum cli_exit audit_switch(const struct audit *audit, const struct audit_switched *act,
                           const char *end)
{
    struct hapax__json_out out = {.to = NULL};

    put_who(&out);
    put_text(&out, "by", hapax_str(act->by));
    put_text(&out, "store", hapax_str(audit->args->shown));
    put_text(&out, "act", hapax_str("switch"));
    if (act->scope)
        put_text(&out, "scope", hapax_str(act->scope));
    put_text(&out, "was", hapax_str(act->was));
    put_text(&out, "to", hapax_str(act->to));
    return put(audit, &out, end);
}

enum cli_exit audit_put_back(const struct audit *audit, const char *by, const char *from,
                             const char *end)
{
    struct hapax__json_out out = {.to = NULL};

    put_who(&out);
    put_text(&out, "by", hapax_str(by));
    if (from)
        put_text(&out, "from", hapax_str(from));
    else
        put_text(&out, "store", hapax_str(audit->args->shown));
    put_text(&out, "act", hapax_str("put back"));
    return put(audit, &out, end);
}

void audit_answered(const struct audit *audit, const struct hapax_op *op)
{
    struct hapax__json_out out = {.to = NULL};

    put_act(&out, audit, op);
    (void)put(audit, &out,
              op->error == HAPAX_ERR_NONE ? hapax_verdict_name(op->verdict)
                                          : hapax_error_name(op->error));
}
