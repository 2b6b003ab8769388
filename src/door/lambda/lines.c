/* SPDX-License-Identifier: Apache-2.0
 *
 * Header lines, by the rules of the HTTP door (nginx/ngx_http_hapax_outcome.c). Another door may
 * have completed a record, so lines that must not be replayed are left out at reading, too.
 */
#include "lines.h"

#include "base/span.h"
#include "door/attempt.h"

#include <string.h>
#include <strings.h>

static bool is_one_of(const char *const *names, size_t n, struct hapax_span name)
{
    for (size_t i = 0; i < n; i++)
        if (hapax__name_is(name, names[i]))
            return true;
    return false;
}

bool hapax__line_is_mark(struct hapax_span name)
{
    static const char *const marks[] = {"idempotency-protected", "idempotency-recorded",
                                        "idempotency-replayed", "idempotency-ttl"};

    return is_one_of(marks, sizeof(marks) / sizeof(marks[0]), name);
}

bool hapax__line_is_kept(struct hapax_span name)
{
    static const char *const never[] = {
        "age",
        "authorization",
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "set-cookie",
        "set-cookie2",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "lambda-runtime-function-error-type",
    };

    return !hapax__line_is_mark(name) && !is_one_of(never, sizeof(never) / sizeof(never[0]), name);
}

bool hapax__line_is(const struct hapax__line *line, struct hapax_span name)
{
    return line->name.len == name.len &&
           strncasecmp((const char *)line->name.ptr, (const char *)name.ptr, name.len) == 0;
}

size_t hapax__lines_first(const struct hapax__lines *lines, struct hapax_span name)
{
    size_t i = 0;

    while (i < lines->n && !hapax__line_is(&lines->at[i], name))
        i++;
    return i;
}

static struct hapax_span trim(struct hapax_span value)
{
    while (value.len > 0 && (value.ptr[0] == ' ' || value.ptr[0] == '\t')) {
        value.ptr++;
        value.len--;
    }
    while (value.len > 0 && strchr(" \t\r", value.ptr[value.len - 1]))
        value.len--;
    return value;
}

void hapax__lines_read(struct hapax__lines *lines, struct hapax_span headers, bool replayed)
{
    const uint8_t *at = headers.ptr, *end;

    lines->n = 0;
    if (headers.len == 0)
        return;
    end = headers.ptr + headers.len;
    while (at < end && lines->n < HAPAX__LINES_MAX) {
        const uint8_t *eol = memchr(at, '\n', (size_t)(end - at));
        const uint8_t *colon;
        struct hapax__line line;

        if (!eol)
            break;
        colon = memchr(at, ':', (size_t)(eol - at));
        if (colon) {
            line.name = (struct hapax_span){at, (size_t)(colon - at)};
            line.value = trim((struct hapax_span){colon + 1, (size_t)(eol - colon - 1)});
            if (hapax__line_is_whole(line.name, line.value) &&
                (!replayed || hapax__line_is_kept(line.name)))
                lines->at[lines->n++] = line;
        }
        at = eol + 1;
    }
}

void hapax__lines_add(struct hapax__lines *lines, const char *name, const char *value)
{
    if (lines->n < HAPAX__LINES_MAX)
        lines->at[lines->n++] = (struct hapax__line){hapax_str(name), hapax_str(value)};
}
