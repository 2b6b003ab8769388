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

#include "base/span.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct hapax_span trim(struct hapax_span t)
{
    while (t.len > 0 && is_space(t.ptr[0]))
        t.ptr++, t.len--;
    while (t.len > 0 && is_space(t.ptr[t.len - 1]))
        t.len--;
    return t;
}

/* Cuts the first line off. */
static bool next_line(struct hapax_span *rest, struct hapax_span *line)
{
    const uint8_t *end;

    if (rest->len == 0)
        return false;
    end = memchr(rest->ptr, '\n', rest->len);
    *line = (struct hapax_span){rest->ptr, end ? (size_t)(end - rest->ptr) : rest->len};
    rest->ptr += line->len;
    rest->len -= line->len;
    if (end)
        rest->ptr++, rest->len--;
    return true;
}

static struct hapax_span unquote(struct hapax_span t)
{
    if (t.len >= 2 && (t.ptr[0] == '"' || t.ptr[0] == '\'') && t.ptr[t.len - 1] == t.ptr[0])
        return (struct hapax_span){t.ptr + 1, t.len - 2};
    return t;
}

/* What a section is of, by its head "[…]". */
enum section { NO_SECTION, OTHERS, PLAIN, PREFIXED };

static enum section section_of(struct hapax_span line, enum hapax__aws_kind kind,
                               const char *profile)
{
    const uint8_t *end =
        line.len > 0 && line.ptr[0] == '[' ? memchr(line.ptr, ']', line.len) : NULL;
    struct hapax_span name;

    if (!end)
        return NO_SECTION;
    name = trim((struct hapax_span){line.ptr + 1, (size_t)(end - line.ptr) - 1});
    if (kind == HAPAX__AWS_CREDENTIALS)
        return hapax__is(unquote(name), profile) ? PLAIN : OTHERS;
    if (name.len > 8 && memcmp(name.ptr, "profile", 7) == 0 && is_space(name.ptr[7]))
        return hapax__is(unquote(trim((struct hapax_span){name.ptr + 8, name.len - 8})), profile)
                   ? PREFIXED
                   : OTHERS;
    return hapax__is(name, "default") && strcmp(profile, "default") == 0 ? PLAIN : OTHERS;
}

/* A comment begins behind a space. */
static struct hapax_span without_comment(struct hapax_span value)
{
    for (size_t i = 0; i < value.len; i++) {
        if ((value.ptr[i] == '#' || value.ptr[i] == ';') && (i == 0 || is_space(value.ptr[i - 1])))
            return (struct hapax_span){value.ptr, i};
    }
    return value;
}

static bool read_setting(struct hapax_span line, const char *name, struct hapax_span *value)
{
    const uint8_t *equals = memchr(line.ptr, '=', line.len);
    size_t len;

    if (line.len == 0 || is_space(line.ptr[0]) || line.ptr[0] == '#' || line.ptr[0] == ';' ||
        !equals)
        return false;
    len = (size_t)(equals - line.ptr);
    if (!hapax__name_is(trim((struct hapax_span){line.ptr, len}), name))
        return false;
    *value = trim(without_comment((struct hapax_span){equals + 1, line.len - len - 1}));
    return true;
}

static struct hapax_span begin(struct hapax_span file)
{
    if (hapax__begins(file, "\xef\xbb\xbf"))
        file.ptr += 3, file.len -= 3;
    return file;
}

bool hapax__aws_profile_exists(struct hapax_span file, enum hapax__aws_kind kind,
                               const char *profile)
{
    struct hapax_span rest = begin(file), line;

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
    struct hapax_span rest = begin(file), line, found = {NULL, 0}, value;
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
    if (found.len >= size || memchr(found.ptr, '\0', found.len))
        return HAPAX__AWS_TOO_LONG;
    memcpy(out, found.ptr, found.len);
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
