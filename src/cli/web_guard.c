/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may ask hapax web. In this order:
 *
 * 1. The Host is one of ours. A page of a stranger that has its name point to this address
 *    (DNS rebinding) has another Host.
 * 2. A login: a password of a file as htpasswd makes it (bcrypt, or crypt's SHA-512), or the header
 *    in which a proxy says who it is, or both: then the password is the proxy's.
 * 3. A POST is of our own page: Sec-Fetch-Site says so, or Origin where a browser sends no
 *    Sec-Fetch-Site. It is JSON, which no form can send, and brings the token that our page read.
 *
 * Checking a password is slow by design, so the digests of those that were right are kept until the
 * file changes. They are under a key of this process. Passwords are checked one at a time, and who
 * comes meanwhile is told to try again: otherwise wrong ones would hold up those who are logged in.
 */
#include "web.h"

#include "base/base64.h"
#include "base/span.h"
#include "base/utf8.h"

#include <crypt.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>

#define KNOWN_MAX 64u
#define LOGIN_MAX 512u /* of "Basic ...", decoded */
#define FILE_MAX  (64u << 10)
#define DIGEST    32u

enum login { LOGIN_WRONG, LOGIN_RIGHT, LOGIN_BUSY };

struct web_guard {
    struct web_rules rules;
    char token[WEB_TOKEN_SIZE];
    uint8_t key[DIGEST];
    pthread_mutex_t hashing; /* of crypt; never waited for */
    struct crypt_data crypt;
    pthread_mutex_t mutex; /* of what follows; held for moments */
    struct stat file;
    unsigned changes; /* of the file */
    uint8_t known[KNOWN_MAX][DIGEST];
    unsigned known_next;
};

/* ---- opening ---------------------------------------------------------------------------- */

static enum cli_exit check_file(struct web_guard *guard, const struct cli_args *args)
{
    const char *path = guard->rules.password_file;

    if (!path)
        return CLI_DONE;
    if (stat(path, &guard->file) != 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "cannot read --password-file \"%s\": %s", path, strerror(errno));
    if (guard->file.st_mode & S_IROTH)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--password-file \"%s\": everybody can read it; chmod o-r it", path);
    return CLI_DONE;
}

enum cli_exit web_guard_open(struct web_guard **out, const struct cli_args *args,
                             const struct web_rules *rules)
{
    struct web_guard *guard = calloc(1, sizeof(*guard));
    uint8_t random[(WEB_TOKEN_SIZE - 1) / 2];
    enum cli_exit exit;

    *out = NULL;
    if (!guard)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    guard->rules = *rules;
    (void)pthread_mutex_init(&guard->hashing, NULL);
    (void)pthread_mutex_init(&guard->mutex, NULL);
    if (getrandom(random, sizeof(random), 0) != sizeof(random) ||
        getrandom(guard->key, sizeof(guard->key), 0) != sizeof(guard->key))
        exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    else
        exit = check_file(guard, args);
    if (exit != CLI_DONE) {
        web_guard_close(guard);
        return exit;
    }
    *hapax__hex(guard->token, random, sizeof(random)) = '\0';
    *out = guard;
    return CLI_DONE;
}

void web_guard_close(struct web_guard *guard)
{
    if (!guard)
        return;
    (void)pthread_mutex_destroy(&guard->mutex);
    (void)pthread_mutex_destroy(&guard->hashing);
    explicit_bzero(guard, sizeof(*guard));
    free(guard);
}

const char *web_guard_token(const struct web_guard *guard)
{
    return guard->token;
}

/* ---- refusals --------------------------------------------------------------------------- */

static bool refuse(struct hapax__site_reply *reply, unsigned status, const char *text)
{
    reply->status = status;
    reply->type = "text/plain; charset=utf-8";
    reply->body = text;
    reply->len = strlen(text);
    return false;
}

/* ---- the host --------------------------------------------------------------------------- */

/* The length of a host's name, without its port. */
static size_t name_len(const char *host)
{
    return host[0] == '[' ? strcspn(host, "]") + (strchr(host, ']') != NULL) : strcspn(host, ":");
}

static bool is_named(const char *host, const char *name)
{
    size_t len = name_len(host);

    return strlen(name) == len && strncasecmp(host, name, len) == 0;
}

static bool is_host(const struct web_guard *guard, const char *host)
{
    static const char *const loopback[] = {"127.0.0.1", "localhost", "[::1]"};

    for (size_t i = 0; host && i < sizeof(loopback) / sizeof(loopback[0]); i++)
        if (is_named(host, loopback[i]))
            return true;
    for (size_t i = 0; host && i < guard->rules.names->n; i++)
        if (is_named(host, guard->rules.names->items[i]))
            return true;
    return false;
}

/* ---- the login -------------------------------------------------------------------------- */

/* The file's hash for a name; NULL: it has none. *first: the file's first hash, of anybody. */
static const char *find_hash(const char **first, char *text, const char *name)
{
    const char *line, *hash;

    *first = NULL;
    while ((line = strsep(&text, "\r\n"))) {
        char *colon = strchr(line, ':');

        if (!colon || colon[1] != '$')
            continue;
        *colon = '\0';
        hash = colon + 1;
        colon[1 + strcspn(hash, ":")] = '\0';
        if (!*first)
            *first = hash;
        if (strcmp(line, name) == 0)
            return hash;
    }
    return NULL;
}

/* Whether the file has this password for the name. A name that it does not have takes as long as a
 * wrong password of the first name, so that nobody learns the names. */
static bool is_password(struct web_guard *guard, const char *name, const char *password)
{
    static const char none[] = "$6$hapaxnobody$";
    char *text = calloc(1, FILE_MAX + 1);
    FILE *file = text ? fopen(guard->rules.password_file, "re") : NULL;
    const char *hash, *first = NULL, *made;
    bool right;

    if (file) {
        text[fread(text, 1, FILE_MAX, file)] = '\0';
        (void)fclose(file);
    }
    hash = file ? find_hash(&first, text, name) : NULL;
    first = first ? first : none;
    made = crypt_rn(password, hash ? hash : first, &guard->crypt, (int)sizeof(guard->crypt));
    right = hash && made && strlen(made) == strlen(hash) &&
            CRYPTO_memcmp(made, hash, strlen(hash)) == 0;
    if (text)
        explicit_bzero(text, FILE_MAX);
    explicit_bzero(&guard->crypt, sizeof(guard->crypt));
    free(text);
    return right;
}

static bool is_known(const struct web_guard *guard, const uint8_t digest[DIGEST])
{
    bool known = false;

    for (unsigned i = 0; i < KNOWN_MAX; i++)
        known |= CRYPTO_memcmp(guard->known[i], digest, DIGEST) == 0;
    return known;
}

/* Whether the digest is of a login that was right, by the file as it is. *changes: of the file. */
static bool was_right(struct web_guard *guard, const uint8_t digest[DIGEST], unsigned *changes)
{
    struct stat file = {0};
    bool right;

    pthread_mutex_lock(&guard->mutex);
    if (stat(guard->rules.password_file, &file) != 0 ||
        memcmp(&file.st_mtim, &guard->file.st_mtim, sizeof(file.st_mtim)) != 0 ||
        file.st_ino != guard->file.st_ino || file.st_size != guard->file.st_size) {
        memset(guard->known, 0, sizeof(guard->known));
        guard->file = file;
        guard->changes++;
    }
    right = is_known(guard, digest);
    *changes = guard->changes;
    pthread_mutex_unlock(&guard->mutex);
    return right;
}

/* Keeps a digest that was right by the file after so many changes. */
static void keep_right(struct web_guard *guard, const uint8_t digest[DIGEST], unsigned changes)
{
    pthread_mutex_lock(&guard->mutex);
    if (guard->changes == changes)
        memcpy(guard->known[guard->known_next++ % KNOWN_MAX], digest, DIGEST);
    pthread_mutex_unlock(&guard->mutex);
}

/* login: "NAME:PASSWORD". */
static enum login check_login(struct web_guard *guard, const char *login, const char *name,
                              const char *password)
{
    uint8_t digest[DIGEST];
    unsigned changes;
    bool right;

    if (!HMAC(EVP_sha256(), guard->key, (int)sizeof(guard->key), (const uint8_t *)login,
              strlen(login), digest, NULL))
        return LOGIN_WRONG;
    if (was_right(guard, digest, &changes))
        return LOGIN_RIGHT;
    if (pthread_mutex_trylock(&guard->hashing) != 0)
        return LOGIN_BUSY;
    right = is_password(guard, name, password);
    pthread_mutex_unlock(&guard->hashing);
    if (!right)
        return LOGIN_WRONG;
    keep_right(guard, digest, changes);
    return LOGIN_RIGHT;
}

/* A name for the record: text that a terminal may show. */
static bool take_name(char who[HAPAX_BY_MAX + 1], const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > HAPAX_BY_MAX ||
        !hapax__is_utf8((struct hapax_span){(const uint8_t *)name, len}))
        return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    memcpy(who, name, len + 1);
    return true;
}

static enum login read_login(struct web_guard *guard, char who[HAPAX_BY_MAX + 1],
                             const struct hapax__site_request *request)
{
    const char *sent = hapax__site_header(request, "Authorization");
    char login[LOGIN_MAX + 1], name[LOGIN_MAX + 1];
    enum login result = LOGIN_WRONG;
    char *colon;
    size_t len;

    if (!sent || strncasecmp(sent, "Basic ", 6) != 0)
        return LOGIN_WRONG;
    sent += 6 + strspn(sent + 6, " ");
    if (strlen(sent) > LOGIN_MAX / 3 * 4 || strlen(sent) % 4 != 0 ||
        !hapax__base64_decode((uint8_t *)login, &len, hapax_str(sent)))
        return LOGIN_WRONG;
    login[len] = '\0';
    memcpy(name, login, len + 1);
    colon = strchr(name, ':');
    if (colon && strlen(login) == len) {
        *colon = '\0';
        if (take_name(who, name))
            result = check_login(guard, login, name, colon + 1);
    }
    explicit_bzero(login, sizeof(login));
    explicit_bzero(name, sizeof(name));
    return result;
}

static bool is_logged_in(struct web_guard *guard, char who[HAPAX_BY_MAX + 1],
                         const struct hapax__site_request *request, struct hapax__site_reply *reply)
{
    const char *header = guard->rules.user_header;
    const char *user = header ? hapax__site_header(request, header) : NULL;

    enum login login = LOGIN_RIGHT;

    who[0] = '\0';
    if (guard->rules.password_file)
        login = read_login(guard, who, request);
    if (login == LOGIN_BUSY)
        return refuse(reply, 429, "another password is being checked; try again\n");
    if (login == LOGIN_WRONG) {
        reply->challenge = "Basic realm=\"hapax\", charset=\"UTF-8\"";
        return refuse(reply, 401, "log in\n");
    }
    if (header &&
        (!user || hapax__site_header_count(request, header) != 1 || !take_name(who, user)))
        return refuse(reply, 401, "the proxy does not say who you are (--user-header)\n");
    return true;
}

/* ---- the page ---------------------------------------------------------------------------- */

static bool is_own_origin(const struct hapax__site_request *request)
{
    const char *site = hapax__site_header(request, "Sec-Fetch-Site");
    const char *origin = hapax__site_header(request, "Origin");
    const char *host = hapax__site_header(request, "Host");

    if (site)
        return strcmp(site, "same-origin") == 0;
    if (!origin)
        return true; /* no browser */
    origin = strstr(origin, "://");
    return origin && host && strcasecmp(origin + 3, host) == 0;
}

static bool is_ours(const struct web_guard *guard, const struct hapax__site_request *request,
                    struct hapax__site_reply *reply)
{
    const char *type = hapax__site_header(request, "Content-Type");
    const char *token = hapax__site_header(request, "X-Hapax-Token");

    if (!is_own_origin(request))
        return refuse(reply, 403, "this came from the page of another site\n");
    if (strcmp(request->method, "POST") != 0)
        return true;
    if (!type || strcasecmp(type, "application/json") != 0)
        return refuse(reply, 415, "Content-Type is not application/json\n");
    if (!token || strlen(token) != WEB_TOKEN_SIZE - 1 ||
        CRYPTO_memcmp(token, guard->token, WEB_TOKEN_SIZE - 1) != 0)
        return refuse(reply, 403, "reload the page: its token is of another hapax web\n");
    return true;
}

bool web_guard_admits(struct web_guard *guard, char who[HAPAX_BY_MAX + 1],
                      const struct hapax__site_request *request, struct hapax__site_reply *reply)
{
    if (!is_host(guard, hapax__site_header(request, "Host")))
        return refuse(reply, 421, "this is not the Host of this page (--name)\n");
    if (!is_logged_in(guard, who, request, reply))
        return false;
    /* What the page is made of may be linked to, and holds nothing. */
    return !hapax__text_begins(request->path, "/api/") || is_ours(guard, request, reply);
}
