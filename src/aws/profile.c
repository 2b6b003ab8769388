/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading shared files, a line at a time and anew for each value: they are short, and read at
 * hours' distance.
 *
 * What it keeps: any bytes are a file, and what is no line of one of the forms below says nothing.
 *
 *     [default]    [NAME]    [profile NAME]    [profile "A NAME"]
 *     name = value    name = value # comment    # comment    ; comment
 *
 * Rejected: a parsed form that is kept. It would be one more place with secrets in it, and old
 * ones.
 */
#include "profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

struct text { /* a part of the file */
    const char *at;
    size_t len;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct text trim(struct text t)
{
    while (t.len > 0 && is_space(t.at[0]))
        t.at++, t.len--;
    while (t.len > 0 && is_space(t.at[t.len - 1]))
        t.len--;
    return t;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is(struct text t, const char *word)
{
    return t.len == strlen(word) && memcmp(t.at, word, t.len) == 0;
}

static bool is_in_any_case(struct text t, const char *word)
{
    if (t.len != strlen(word))
        return false;
    for (size_t i = 0; i < t.len; i++) {
        if (lower(t.at[i]) != word[i])
            return false;
    }
    return true;
}

/* Cuts the first line off. */
static bool next_line(struct text *rest, struct text *line)
{
    const char *end;

    if (rest->len == 0)
        return false;
    end = memchr(rest->at, '\n', rest->len);
    *line = (struct text){rest->at, end ? (size_t)(end - rest->at) : rest->len};
    rest->at += line->len;
    rest->len -= line->len;
    if (end)
        rest->at++, rest->len--;
    return true;
}

static struct text unquote(struct text t)
{
    if (t.len >= 2 && (t.at[0] == '"' || t.at[0] == '\'') && t.at[t.len - 1] == t.at[0])
        return (struct text){t.at + 1, t.len - 2};
    return t;
}

/* What a section is of, by its head "[…]". */
enum section { NO_SECTION, OTHERS, PLAIN, PREFIXED };

static enum section section_of(struct text line, enum hapax__aws_kind kind, const char *profile)
{
    const char *end = line.len > 0 && line.at[0] == '[' ? memchr(line.at, ']', line.len) : NULL;
    struct text name;

    if (!end)
        return NO_SECTION;
    name = trim((struct text){line.at + 1, (size_t)(end - line.at) - 1});
    if (kind == HAPAX__AWS_CREDENTIALS)
        return is(unquote(name), profile) ? PLAIN : OTHERS;
    if (name.len > 8 && memcmp(name.at, "profile", 7) == 0 && is_space(name.at[7]))
        return is(unquote(trim((struct text){name.at + 8, name.len - 8})), profile) ? PREFIXED
                                                                                    : OTHERS;
    return is(name, "default") && strcmp(profile, "default") == 0 ? PLAIN : OTHERS;
}

/* A comment begins behind a space. */
static struct text without_comment(struct text value)
{
    for (size_t i = 0; i < value.len; i++) {
        if ((value.at[i] == '#' || value.at[i] == ';') && (i == 0 || is_space(value.at[i - 1])))
            return (struct text){value.at, i};
    }
    return value;
}

static bool read_setting(struct text line, const char *name, struct text *value)
{
    const char *equals = memchr(line.at, '=', line.len);
    size_t len;

    if (line.len == 0 || is_space(line.at[0]) || line.at[0] == '#' || line.at[0] == ';' || !equals)
        return false;
    len = (size_t)(equals - line.at);
    if (!is_in_any_case(trim((struct text){line.at, len}), name))
        return false;
    *value = trim(without_comment((struct text){equals + 1, line.len - len - 1}));
    return true;
}

static struct text begin(struct hapax_span file)
{
    struct text rest = {(const char *)file.ptr, file.len};

    if (rest.len >= 3 && memcmp(rest.at, "\xef\xbb\xbf", 3) == 0)
        rest.at += 3, rest.len -= 3;
    return rest;
}

bool hapax__aws_profile_exists(struct hapax_span file, enum hapax__aws_kind kind,
                               const char *profile)
{
    struct text rest = begin(file), line;

    while (next_line(&rest, &line)) {
        if (section_of(line, kind, profile) > OTHERS)
            return true;
    }
    return false;
}

/* [profile default] stands before [default], wherever they are. */
enum hapax__aws_found hapax__aws_profile_value(char *out, size_t size, struct hapax_span file,
                                               enum hapax__aws_kind kind, const char *profile,
                                               const char *name)
{
    struct text rest = begin(file), line, found = {NULL, 0}, value;
    enum section section = OTHERS, from = OTHERS;

    out[0] = '\0';
    while (next_line(&rest, &line)) {
        enum section head = section_of(line, kind, profile);

        if (head != NO_SECTION)
            section = head;
        else if (section > OTHERS && section >= from && read_setting(line, name, &value)) {
            found = value;
            from = section;
        }
    }
    if (found.len == 0)
        return HAPAX__AWS_ABSENT;
    if (found.len >= size || memchr(found.at, '\0', found.len))
        return HAPAX__AWS_TOO_LONG;
    memcpy(out, found.at, found.len);
    out[found.len] = '\0';
    return HAPAX__AWS_FOUND;
}

/* ---- files --------------------------------------------------------------------------------- */

static int read_all(int fd, char *bytes, size_t max, size_t *len)
{
    *len = 0;
    for (;;) {
        ssize_t n = read(fd, bytes + *len, max + 1 - *len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return 0;
        *len += (size_t)n;
        if (*len > max)
            return EFBIG;
    }
}

int hapax__aws_file_read(struct hapax_span *out, const char *path, size_t max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error;
    struct hapax_span file = {NULL, 0};
    char *bytes;

    *out = file;
    if (fd < 0)
        return errno;
    bytes = malloc(max + 1);
    error = bytes ? read_all(fd, bytes, max, &file.len) : ENOMEM;
    close(fd);
    file.ptr = (const uint8_t *)bytes;
    if (error != 0) {
        hapax__aws_file_free(&file);
        return error;
    }
    bytes[file.len] = '\0';
    *out = file;
    return 0;
}

void hapax__aws_file_free(struct hapax_span *file)
{
    void *bytes = (void *)(uintptr_t)file->ptr;

    if (bytes)
        OPENSSL_cleanse(bytes, file->len);
    free(bytes);
    *file = (struct hapax_span){NULL, 0};
}
