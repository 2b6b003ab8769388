/* SPDX-License-Identifier: Apache-2.0
 *
 * Which store, which secret, which operation: what a command finds out before its first op. Only
 * this file reads the environment's variables about stores.
 *
 * A command that only reads changes nothing. It does not make an embedded store where a path was
 * misspelled. It does not tie a new store to its secret, as hapax_store_bind() would, but compares
 * the secret with the check value in the store.
 */
#include "child.h"
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/span.h"
#include "base/uri.h"
#include "door/step.h"
#include "http/problem.h"
#include "print.h"
#include "store/rotation/rotation.h"
#include "store/seal.h"
#include "store/types.h"

#define STORE_WAIT_MS 1000 /* between two tries to open a store that is away */

/* ---- failures ------------------------------------------------------------------------ */

enum cli_exit cli_fail(const struct cli_args *args, enum cli_exit exit, enum hapax_error error,
                       const char *format, ...)
{
    char text[1024];
    struct json json;
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (!args->json) {
        (void)fflush(stdout);
        (void)fprintf(stderr, "hapax %s: ", args->command->name);
        print_text(stderr, hapax_str(text), false, 0);
        (void)fputc('\n', stderr);
        return exit;
    }
    json_begin_at(&json, args->out);
    json_text(&json, "error", hapax_error_name(error));
    json_text(&json, "text", text);
    json_end(&json);
    return exit;
}

void cli_log(const struct cli_args *args, const char *line)
{
    struct json json;

    if (!args->json) {
        flockfile(stderr);
        (void)fprintf(stderr, "hapax %s: ", args->command->name);
        print_text(stderr, hapax_str(line), false, 0);
        (void)fputc('\n', stderr);
        funlockfile(stderr);
        return;
    }
    flockfile(stdout);
    json_begin(&json);
    json_bytes(&json, "log", hapax_str(line));
    json_number(&json, "time_us", hapax__wall_us());
    json_end(&json);
    (void)fflush(stdout);
    funlockfile(stdout);
}

enum cli_exit cli_store_failed(const struct cli_args *args, enum hapax_error error,
                               const char *text)
{
    bool ours =
        error == HAPAX_ERR_INVALID || error == HAPAX_ERR_UNSUPPORTED || error == HAPAX_ERR_TOO_BIG;

    return cli_fail(args, ours ? CLI_USAGE : CLI_UNREACHED, error, "%s",
                    text[0] ? text : hapax_error_name(error));
}

/* ---- the store ----------------------------------------------------------------------- */

static bool set_from(const char *variable, const char **value)
{
    *value = getenv(variable);
    return *value && **value;
}

/* The folder in which programs keep their state. */
static bool state_folder(char *out, size_t size)
{
    const struct passwd *user;
    const char *base;
    int len;

    if (set_from("XDG_STATE_HOME", &base) && base[0] == '/') {
        len = snprintf(out, size, "%s", base);
    } else {
        if (!set_from("HOME", &base)) {
            user = getpwuid(geteuid());
            if (!user)
                return false;
            base = user->pw_dir;
        }
        len = snprintf(out, size, "%s/.local/state", base);
    }
    return len > 0 && (size_t)len < size;
}

/* Percent-encoded, as a user or a password has to be. */
static void put_encoded(FILE *out, const char *word)
{
    for (; *word != '\0'; word++) {
        bool plain = (*word >= '0' && *word <= '9') || (*word >= 'A' && *word <= 'Z') ||
                     (*word >= 'a' && *word <= 'z');

        (void)fprintf(out, plain ? "%c" : "%%%02X", (unsigned char)*word);
    }
}

/* Whether a Redis URI of a list begins at `at`; *len is how long it is, and *scheme its scheme. */
static bool is_redis(const char *uri, const char *at, size_t *len, size_t *scheme)
{
    const char *slashes = strstr(at, "://");
    const char *end;

    if (strncmp(at, "redis", 5) != 0 || !slashes || (at > uri && !strchr(":,+", at[-1])))
        return false;
    *scheme = (size_t)(slashes + 3 - at);
    if (strcspn(at, ":,") + 3 != *scheme)
        return false;
    for (end = slashes + 3; *end != '\0'; end++)
        if ((*end == ',' || *end == '+') && hapax__uri_begins(end + 1))
            break;
    *len = (size_t)(end - at);
    return true;
}

static bool has_login(const char *at, size_t len)
{
    size_t hosts = strcspn(at, "/?");

    return memchr(at, '@', hosts < len ? hosts : len) ||
           memmem(at, len, "?password_file=", strlen("?password_file=")) ||
           memmem(at, len, "&password_file=", strlen("&password_file="));
}

static void put_with_login(FILE *out, const char *uri, const char *user, const char *password)
{
    const char *at = uri;

    while (*at != '\0') {
        size_t len, scheme;

        if (!is_redis(uri, at, &len, &scheme)) {
            (void)fputc(*at++, out);
            continue;
        }
        (void)fwrite(at, 1, scheme, out);
        if (!has_login(at + scheme, len - scheme)) {
            put_encoded(out, user ? user : "");
            (void)fputc(':', out);
            put_encoded(out, password);
            (void)fputc('@', out);
        }
        (void)fwrite(at + scheme, 1, len - scheme, out);
        at += len;
    }
}

/* Gives each Redis of the URI that has no login the environment's. Other users can read a command
 * line, but not an environment. */
static enum cli_exit add_login(struct cli_args *args)
{
    const char *user, *password;
    bool has_user = set_from("HAPAX_REDIS_USERNAME", &user);
    char *uri = NULL;
    size_t len = 0;
    FILE *out;
    bool good;

    if (!strstr(args->store, "redis"))
        return CLI_DONE;
    if (!set_from("HAPAX_REDIS_PASSWORD", &password))
        return has_user ? cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                                   "HAPAX_REDIS_USERNAME is set, but not HAPAX_REDIS_PASSWORD")
                        : CLI_DONE;
    out = open_memstream(&uri, &len);
    if (!out)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    put_with_login(out, args->store, user, password);
    good = fclose(out) == 0 && len < sizeof(args->uri);
    if (good) {
        memcpy(args->uri, uri, len + 1);
        args->store = args->uri;
    }
    if (uri)
        explicit_bzero(uri, len);
    free(uri);
    return good ? CLI_DONE : cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store is too long");
}

static enum cli_exit store_named(struct cli_args *args)
{
    args->shown = args->store; /* a path is shown whole, however long */
    if (strncmp(args->store, "rocksdb:", 8) == 0 || strncmp(args->store, "unix:", 5) == 0)
        return CLI_DONE;
    hapax_store_shown(args->shown_uri, args->store);
    args->shown = args->shown_uri;
    return add_login(args);
}

enum cli_exit cli_store_name(struct cli_args *args)
{
    char folder[PATH_MAX];

    if (args->store || set_from("HAPAX_STORE", &args->store))
        return store_named(args);
    args->store = args->uri;
    args->by_default = true;
    if (!state_folder(folder, sizeof(folder)))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "no store is named: give --store URI, or set HAPAX_STORE");
    (void)snprintf(args->uri, sizeof(args->uri), "rocksdb:%s/hapax", folder);
    args->shown = args->store;
    return CLI_DONE;
}

bool cli_embedded_path(char path[PATH_MAX], const char *uri)
{
    static const char scheme[] = "rocksdb:";
    size_t len;

    if (!hapax__text_begins(uri, scheme))
        return false;
    uri += strlen(scheme);
    len = strcspn(uri, "?");
    if (len == 0 || len >= PATH_MAX)
        return false;
    memcpy(path, uri, len);
    path[len] = '\0';
    return true;
}

/* Makes the folders above the default store: the user did not name them, and so is not asked to
 * make them. */
static void make_folders_above(const char *path)
{
    char folder[PATH_MAX];

    for (size_t i = 1; i < sizeof(folder) && path[i] != '\0'; i++) {
        if (path[i] != '/')
            continue;
        memcpy(folder, path, i);
        folder[i] = '\0';
        (void)mkdir(folder, 0700); /* what is wrong with it, opening the store will say */
    }
}

bool cli_embedded_made(const char *path)
{
    char database[PATH_MAX + 4];
    struct stat st;

    (void)snprintf(database, sizeof(database), "%s/db", path);
    return stat(database, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

enum cli_exit cli_prepare(const struct cli_args *args, enum cli_opening opening)
{
    char path[PATH_MAX];

    if (strstr(args->store, "rocksdb:") && !hapax__text_begins(args->store, "rocksdb:"))
        (void)cli_embedded_use(); /* one of the two of a move: */
    if (!cli_embedded_path(path, args->store))
        return CLI_DONE;
    if (!cli_embedded_use() && cli_embedded_holder(path) == 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "cannot open store \"%s\": this hapax was built without RocksDB",
                        args->store);
    if (opening == CLI_CREATE && args->by_default)
        make_folders_above(path);
    if (opening == CLI_EXISTING && !cli_embedded_made(path))
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "there is no store at \"%s\"; \"hapax init\" makes one", args->store);
    return CLI_DONE;
}

/* For commands that show or set outcomes. A keeper's handle passes them on, as they are stored. */
static enum cli_exit use_keys(struct hapax_store **out, const struct cli_args *args)
{
    struct cli_secret keys;
    enum cli_exit exit = cli_keys_read(&keys, args);

    if (exit == CLI_DONE &&
        hapax_store_keys(*out, (struct hapax_span){keys.bytes, keys.len}) != HAPAX_ERR_NONE)
        exit = cli_store_failed(args, HAPAX_ERR_NOMEM, hapax_store_text(*out));
    explicit_bzero(&keys, sizeof(keys));
    if (exit != CLI_DONE) {
        hapax_store_close(*out);
        *out = NULL;
    }
    return exit;
}

enum cli_exit cli_open(struct hapax_store **out, const struct cli_args *args,
                       enum cli_opening opening)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit;

    *out = args->lent;
    if (*out)
        return CLI_DONE;
    exit = cli_prepare(args, opening);
    if (exit != CLI_DONE)
        return exit;
    error = hapax_store_open(out, args->store, text);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, text);
    return opening == CLI_EXISTING ? use_keys(out, args) : CLI_DONE;
}

static enum cli_exit open_door(struct hapax **out, const struct cli_args *args,
                               const struct hapax_options *how, int signals)
{
    char text[HAPAX_TEXT_MAX], line[HAPAX_TEXT_MAX + 64];
    enum cli_exit exit = cli_prepare(args, CLI_CREATE);
    bool told = false;
    int number;

    while (exit == CLI_DONE) {
        enum hapax_error error = hapax_open(out, args->store, how, text);

        if (error == HAPAX_ERR_NONE)
            break;
        if (error != HAPAX_ERR_UNAVAILABLE && error != HAPAX_ERR_INDETERMINATE)
            return cli_store_failed(args, error, text);
        (void)snprintf(line, sizeof(line), "%s; waiting for it",
                       text[0] ? text : "the store is away");
        if (!told)
            cli_log(args, line);
        told = true;
        number = cli_signals_wait(signals, STORE_WAIT_MS);
        if (number == 0 || number == SIGCHLD || (number == SIGHUP && cli_signal_ignored(number)))
            continue;
        return args->words ? (enum cli_exit)(CLI_SIGNALLED + number) : CLI_DONE;
    }
    return exit;
}

enum cli_exit cli_open_door(struct hapax **out, const struct cli_args *args,
                            const struct cli_secrets *secrets, uint32_t calls_max, int signals)
{
    struct cli_secret keys;
    enum cli_exit exit = cli_keys_read(&keys, args);
    const struct hapax__secrets both = cli_secrets_of(secrets);
    const struct hapax_options how = {.secret = both.now,
                                      .secret_old = both.old,
                                      .keys = {keys.bytes, keys.len},
                                      .calls_max = calls_max};

    if (exit == CLI_DONE)
        exit = open_door(out, args, &how, signals);
    explicit_bzero(&keys, sizeof(keys));
    return exit;
}

void cli_close(const struct cli_args *args, struct hapax_store *store)
{
    store = hapax__rotation_under(store);
    if (store != args->lent)
        hapax_store_close(store);
}

/* ---- the secret ---------------------------------------------------------------------- */

static enum cli_exit secret_fail(const struct cli_args *args, const struct cli_secret *secret,
                                 const char *why)
{
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot use %s \"%s\": %s",
                    secret->variable, secret->file, why);
}

/* Reads up to the end, or until the buffer is full. False: errno is set. */
static bool read_all(int fd, uint8_t *out, size_t size, size_t *len)
{
    ssize_t got;

    for (*len = 0; *len < size; *len += (size_t)got) {
        got = read(fd, out + *len, size - *len);
        if (got < 0 && errno == EINTR) {
            got = 0;
            continue;
        }
        if (got < 0)
            return false;
        if (got == 0)
            break;
    }
    return true;
}

bool cli_secret_given(void)
{
    const char *path;

    return set_from("HAPAX_SECRET_FILE", &path);
}

bool cli_rotates(void)
{
    const char *path;

    return set_from("HAPAX_SECRET_OLD_FILE", &path);
}

/* Reads the file that the variable names. */
static enum cli_exit read_named(struct cli_secret *secret, const struct cli_args *args,
                                const char *variable)
{
    struct stat st;
    bool good;
    int fd;

    secret->len = 0;
    secret->variable = variable;
    if (!set_from(variable, &secret->file))
        return CLI_DONE;
    fd = open(secret->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return secret_fail(args, secret, strerror(errno));
    if (fstat(fd, &st) != 0 || (st.st_mode & S_IROTH)) {
        close(fd);
        return secret_fail(args, secret, "everybody can read it; chmod o-r it");
    }
    good = read_all(fd, secret->bytes, sizeof(secret->bytes), &secret->len);
    close(fd);
    if (!good)
        return secret_fail(args, secret, strerror(errno));
    if (secret->len > 0 && secret->bytes[secret->len - 1] == '\n')
        secret->len--;
    if (secret->len == 0)
        return secret_fail(args, secret, "it is empty");
    if (secret->len > CLI_SECRET_MAX)
        return secret_fail(args, secret, "it is over 4096 bytes");
    return CLI_DONE;
}

enum cli_exit cli_secret_read(struct cli_secret *secret, const struct cli_args *args)
{
    return read_named(secret, args, "HAPAX_SECRET_FILE");
}

enum cli_exit cli_secrets_read(struct cli_secrets *secrets, const struct cli_args *args)
{
    enum cli_exit exit = cli_secret_read(&secrets->now, args);
    const char *old;

    secrets->old.len = 0;
    secrets->rotates = set_from("HAPAX_SECRET_OLD_FILE", &old);
    if (exit != CLI_DONE || !secrets->rotates)
        return exit;
    if (secrets->now.len == 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "HAPAX_SECRET_OLD_FILE is set, and HAPAX_SECRET_FILE, the new secret, is "
                        "not");
    return strcmp(old, "none") == 0 ? CLI_DONE
                                    : read_named(&secrets->old, args, "HAPAX_SECRET_OLD_FILE");
}

struct hapax__secrets cli_secrets_of(const struct cli_secrets *secrets)
{
    struct hapax__secrets out = {.now = {secrets->now.bytes, secrets->now.len}};

    if (secrets->rotates)
        out.old = (struct hapax_span){secrets->old.bytes, secrets->old.len};
    return out;
}

enum cli_exit cli_keys_read(struct cli_secret *keys, const struct cli_args *args)
{
    enum cli_exit exit = read_named(keys, args, "HAPAX_KEYS_FILE");
    struct hapax__keys read;
    char why[HAPAX_TEXT_MAX];

    if (exit == CLI_DONE &&
        hapax__keys_read(&read, (struct hapax_span){keys->bytes, keys->len}, why) != HAPAX_ERR_NONE)
        exit = secret_fail(args, keys, why);
    else if (exit == CLI_DONE && keys->len > 0 && read.n == 0)
        exit = secret_fail(args, keys, "it has no key");
    explicit_bzero(&read, sizeof(read));
    return exit;
}

bool cli_is_step_list(const struct hapax_record *record)
{
    struct hapax_digest steps;

    hapax__steps_fingerprint(&steps);
    return memcmp(&record->fingerprint, &steps, sizeof(steps)) == 0;
}

bool cli_is_own(const struct hapax_record *record)
{
    struct hapax_digest value;
    struct hapax_id check, epoch;

    hapax__bind_check(&check, &value, (struct hapax_span){NULL, 0});
    hapax__epoch_id(&epoch);
    return memcmp(&record->id, &check, sizeof(check)) == 0 ||
           memcmp(&record->id, &epoch, sizeof(epoch)) == 0 || hapax__is_switch(record) ||
           hapax__is_rotation(record) || cli_is_step_list(record);
}

const char *cli_by(char out[HAPAX_BY_MAX + 1], const char *given)
{
    const struct passwd *user;

    if (given)
        return given;
    if (getlogin_r(out, HAPAX_BY_MAX + 1) == 0 && out[0])
        return out;
    user = getpwuid(getuid());
    if (user)
        (void)snprintf(out, HAPAX_BY_MAX + 1, "%s", user->pw_name);
    else
        (void)snprintf(out, HAPAX_BY_MAX + 1, "user %u", (unsigned)getuid());
    return out;
}

/* Whether the store is of the given secrets; of a store that is not, nothing is changed. */
static enum cli_exit secret_compare(const struct cli_args *args, struct hapax_store *store,
                                    const struct hapax__secrets *secrets)
{
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    struct hapax_digest value;
    enum hapax_error error;

    hapax__bind_check(&op.id, &value, secrets->now);
    error = hapax_store_run(store, &op, 1);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, hapax_store_text(store));
    if (op.verdict == HAPAX_ABSENT || hapax__rotation_is(&op.record.fingerprint, secrets))
        return CLI_DONE;
    if (secrets->old.ptr)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_REFUSED,
                        "the store \"%s\" has other secrets than those in HAPAX_SECRET_FILE and "
                        "HAPAX_SECRET_OLD_FILE",
                        args->shown);
    return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_REFUSED,
                    secrets->now.len > 0
                        ? "the store \"%s\" has another secret than the one in "
                          "HAPAX_SECRET_FILE, or none; or its secret is being changed "
                          "(HAPAX_SECRET_OLD_FILE)"
                        : "the store \"%s\" has a secret; set HAPAX_SECRET_FILE",
                    args->shown);
}

/* ---- the operation ------------------------------------------------------------------- */

bool cli_id_read(struct hapax_id *id, const char *hex)
{
    static const char digits[] = "0123456789abcdef";

    if (hapax__text_begins(hex, HAPAX__INSTANCE_BASE)) /* from a problem */
        hex += strlen(HAPAX__INSTANCE_BASE);
    if (strlen(hex) != 2 * sizeof(id->bytes) || hex[strspn(hex, digits)] != '\0')
        return false;
    for (size_t i = 0; i < sizeof(id->bytes); i++)
        id->bytes[i] = (uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 |
                                 (strchr(digits, hex[2 * i + 1]) - digits));
    return true;
}

static enum cli_exit names_of(struct cli_names *names, const struct cli_args *args,
                              const struct cli_operation *operation,
                              const struct hapax__secrets *secrets)
{
    struct hapax__flow_request request = {
        .scope = hapax_str(operation->scope ? operation->scope : "default")};

    if (operation->owner && !*operation->owner)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--owner is empty");
    if (hapax__identify(&request, hapax_str(operation->owner), hapax_str(args->operand),
                        hapax_str(operation->step), secrets) != HAPAX_ERR_NONE)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "not an operation: KEY, --scope and --owner have 1 to %u bytes, --step at "
                        "most %u and no ':'",
                        HAPAX_KEY_MAX, HAPAX_STEP_MAX);
    names->id = request.id;
    names->owner = request.owner;
    names->has_old = request.has_old;
    /* An operator does not know what the request was. */
    names->old = (struct hapax_identity){.id = request.old.id, .owner = request.old.owner};
    return CLI_DONE;
}

void cli_name(struct hapax_op *op, const struct cli_names *names)
{
    op->id = names->id;
    op->owner = names->owner;
    op->old = names->has_old ? &names->old : NULL;
}

enum cli_exit cli_owners(struct hapax_digest out[CLI_OWNERS_MAX], size_t *n,
                         const struct cli_args *args, struct hapax_store *store, const char *owner)
{
    struct cli_secrets secrets;
    struct hapax__secrets both;
    enum cli_exit exit = cli_secrets_read(&secrets, args);

    *n = 0;
    both = cli_secrets_of(&secrets);
    if (exit == CLI_DONE && hapax_owner(&out[(*n)++], hapax_str(owner), both.now) != HAPAX_ERR_NONE)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--owner is not of 1 to %u bytes",
                        HAPAX_OWNER_MAX);
    if (exit == CLI_DONE && secrets.rotates)
        (void)hapax_owner(&out[(*n)++], hapax_str(owner), both.old);
    if (exit == CLI_DONE)
        exit = secret_compare(args, store, &both);
    explicit_bzero(&secrets, sizeof(secrets));
    return exit;
}

/* Takes the key within the quotes for KEY, where the store does not know KEY as it stands. A key
 * of a message may have quotes of its own. */
static enum cli_exit unquote(struct cli_names *names, struct hapax_store *store,
                             struct cli_args *args, struct cli_operation *operation,
                             const struct hapax__secrets *secrets)
{
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    enum hapax_error error;
    const char *why;
    size_t len;

    cli_name(&op, names);
    error = hapax_key_parse((uint8_t *)operation->unquoted, &len, hapax_str(args->operand), &why);
    if (args->operand[0] != '"' || error != HAPAX_ERR_NONE)
        return CLI_DONE;
    error = hapax_store_run(store, &op, 1);
    if (op.verdict == HAPAX_FOUND || error == HAPAX_ERR_SEALED)
        return CLI_DONE;
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, hapax_store_text(store));
    operation->unquoted[len] = '\0';
    args->operand = operation->unquoted;
    return names_of(names, args, operation, secrets);
}

/* The names, from what the command line says. secrets: what they were made with, if from a key. */
static enum cli_exit identify(struct cli_names *names, struct cli_secrets *secrets,
                              const struct cli_args *args, const struct cli_operation *operation)
{
    struct hapax__secrets both;
    enum cli_exit exit;

    if (!args->operand == !operation->id)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "name the operation by its KEY, or by --id HEX%s",
                        args->operand ? ", not by both" : "");
    if (operation->id && (operation->owner || operation->scope || operation->step))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--owner, --scope and --step go with a KEY; an id has them in it");
    if (operation->id)
        return cli_id_read(&names->id, operation->id)
                   ? CLI_DONE
                   : cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                              "--id \"%s\" is not 64 hex digits, nor the \"instance\" of a problem",
                              operation->id);
    exit = cli_secrets_read(secrets, args);
    if (exit != CLI_DONE)
        return exit;
    both = cli_secrets_of(secrets);
    return names_of(names, args, operation, &both);
}

/* Has ops by the names be about both records of an operation. */
static enum cli_exit rotate(struct hapax_store **store, const struct cli_args *args)
{
    enum hapax_error error = hapax__rotation_over(store);

    return error == HAPAX_ERR_NONE ? CLI_DONE
                                   : cli_store_failed(args, error, hapax_store_text(*store));
}

enum cli_exit cli_open_operation(struct hapax_store **out, struct cli_names *names,
                                 struct cli_args *args, struct cli_operation *operation)
{
    struct cli_secrets secrets = {.rotates = false}; /* not read where the id is given */
    struct hapax__secrets both;
    enum cli_exit exit;

    *out = NULL;
    memset(names, 0, sizeof(*names));
    exit = identify(names, &secrets, args, operation);
    both = cli_secrets_of(&secrets);
    if (exit == CLI_DONE)
        exit = cli_open(out, args, CLI_EXISTING);
    if (exit == CLI_DONE && args->operand)
        exit = secret_compare(args, *out, &both);
    if (exit == CLI_DONE && names->has_old)
        exit = rotate(out, args);
    if (exit == CLI_DONE && args->operand)
        exit = unquote(names, *out, args, operation, &both);
    if (exit != CLI_DONE) {
        cli_close(args, *out);
        *out = NULL;
    }
    explicit_bzero(&secrets, sizeof(secrets));
    return exit;
}

enum cli_exit cli_step_names(struct cli_names *names, const struct hapax_span *steps, size_t n,
                             const struct cli_args *args, const struct cli_operation *operation)
{
    struct cli_secrets secrets;
    enum cli_exit exit = cli_secrets_read(&secrets, args);
    const struct hapax__secrets both = cli_secrets_of(&secrets);

    for (size_t i = 0; i < n && exit == CLI_DONE; i++) {
        char step[HAPAX_STEP_MAX + 1];
        struct cli_operation named = *operation;

        (void)snprintf(step, sizeof(step), "%.*s", (int)steps[i].len, (const char *)steps[i].ptr);
        named.step = step;
        exit =
            steps[i].len <= HAPAX_STEP_MAX ? names_of(&names[i], args, &named, &both) : CLI_USAGE;
        if (exit != CLI_DONE)
            exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                            "the list of steps holds what is no name of one");
    }
    explicit_bzero(&secrets, sizeof(secrets));
    return exit;
}

enum cli_exit cli_traces_open(struct hapax__traces **out, const struct cli_args *args,
                              const struct cli_telling *telling, enum hapax__traced_door door)
{
    const struct hapax__traces_settings settings = {
        .door = door, .url = telling->traces, .events = telling->events};
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = hapax__traces_open(out, &settings, text);

    return error == HAPAX_ERR_NONE ? CLI_DONE : cli_fail(args, CLI_USAGE, error, "%s", text);
}
