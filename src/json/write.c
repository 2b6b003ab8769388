/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of JSON, each put whole or not at all.
 */
#include "write.h"

#include "base/base64.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Room for len bytes more and a NUL; NULL: out of memory. */
static char *grow(struct hapax__json_out *out, size_t len)
{
    size_t size = out->size ? out->size : 1024;
    char *bytes;

    if (out->failed || len > SIZE_MAX / 4) {
        out->failed = true;
        return NULL;
    }
    while (size - out->len < len + 1)
        size *= 2;
    if (size > out->size) {
        bytes = realloc(out->bytes, size);
        if (!bytes) {
            out->failed = true;
            return NULL;
        }
        out->bytes = bytes;
        out->size = size;
    }
    return out->bytes + out->len;
}

static void put_bytes(struct hapax__json_out *out, const void *bytes, size_t len)
{
    char *at;

    if (len == 0)
        return;
    if (out->to) {
        (void)fwrite(bytes, 1, len, out->to);
        return;
    }
    at = grow(out, len);
    if (!at)
        return;
    memcpy(at, bytes, len);
    at[len] = '\0';
    out->len += len;
}

void hapax__json_put(struct hapax__json_out *out, const char *json)
{
    put_bytes(out, json, strlen(json));
}

void hapax__json_put_span(struct hapax__json_out *out, struct hapax_span json)
{
    put_bytes(out, json.ptr, json.len);
}

bool hapax__json_acts(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x061c || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

static void put_text(struct hapax__json_out *out, struct hapax_span bytes, bool shown)
{
    size_t from = 0, len;

    for (size_t i = 0; i < bytes.len; i += len) {
        uint32_t c = bytes.ptr[i];
        char escape[8];

        len = shown ? hapax__utf8_read(&c, bytes.ptr + i, bytes.len - i) : 1;
        if (len > 0 && c != '"' && c != '\\' && !(shown ? hapax__json_acts(c) : c < 0x20))
            continue;
        put_bytes(out, bytes.ptr + from, i - from);
        if (c == '"' || c == '\\')
            (void)snprintf(escape, sizeof(escape), "\\%c", (int)c);
        else
            (void)snprintf(escape, sizeof(escape), "\\u%04x", len > 0 ? (unsigned)c : 0xfffd);
        hapax__json_put(out, escape);
        len = len > 0 ? len : 1;
        from = i + len;
    }
    put_bytes(out, bytes.len > 0 ? bytes.ptr + from : NULL, bytes.len - from);
}

void hapax__json_put_escaped(struct hapax__json_out *out, struct hapax_span bytes)
{
    put_text(out, bytes, false);
}

void hapax__json_put_string(struct hapax__json_out *out, struct hapax_span bytes)
{
    put_bytes(out, "\"", 1);
    put_text(out, bytes, false);
    put_bytes(out, "\"", 1);
}

void hapax__json_put_shown(struct hapax__json_out *out, struct hapax_span bytes)
{
    put_bytes(out, "\"", 1);
    put_text(out, bytes, true);
    put_bytes(out, "\"", 1);
}

void hapax__json_put_base64(struct hapax__json_out *out, struct hapax_span bytes)
{
    put_bytes(out, "\"", 1);
    if (out->to) {
        char digits[HAPAX__BASE64_LEN(3 * 64)];

        while (bytes.len > 0) {
            size_t len = bytes.len < 3 * 64 ? bytes.len : 3 * 64;

            hapax__base64_encode(digits, (struct hapax_span){bytes.ptr, len});
            put_bytes(out, digits, HAPAX__BASE64_LEN(len));
            bytes = (struct hapax_span){bytes.ptr + len, bytes.len - len};
        }
    } else if (bytes.len > 0 && grow(out, HAPAX__BASE64_LEN(bytes.len))) {
        hapax__base64_encode(out->bytes + out->len, bytes);
        out->len += HAPAX__BASE64_LEN(bytes.len);
    }
    put_bytes(out, "\"", 1);
}

void hapax__json_put_number(struct hapax__json_out *out, int64_t number)
{
    char digits[24];

    (void)snprintf(digits, sizeof(digits), "%" PRId64, number);
    hapax__json_put(out, digits);
}

void hapax__json_clear(struct hapax__json_out *out)
{
    if (out->bytes)
        out->bytes[0] = '\0';
    out->len = 0;
    out->failed = false;
}

void hapax__json_free(struct hapax__json_out *out)
{
    free(out->bytes);
    *out = (struct hapax__json_out){0};
}
