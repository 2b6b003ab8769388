/* SPDX-License-Identifier: Apache-2.0
 *
 * Rejected: a field of the record. Seven stores, the keeper's frames and the SQL would have a new
 * version, and a rolling upgrade would have two kinds of records, for what an operator looks at.
 * With a line of the headers, an older program replays one header more. Rejected: the line as the
 * last one. Behind a line `Trailer` it would read as a trailer.
 */
#include "trace.h"

#include "base/bytes.h"
#include "base/span.h"

#include <string.h>

/* An id is not zero. */
static bool take_id(uint8_t *out, const uint8_t *digits, size_t n)
{
    static const uint8_t none[16];

    return hapax__unhex(out, digits, n) && memcmp(out, none, n) != 0;
}

/* 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 */
bool hapax__trace_read(struct hapax__trace *out, struct hapax_span text)
{
    uint8_t version = 0;

    if (text.len < HAPAX__TRACE_TEXT || text.ptr[2] != '-' || text.ptr[35] != '-' ||
        text.ptr[52] != '-')
        return false;
    if (!hapax__unhex(&version, text.ptr, 1) || !take_id(out->trace, text.ptr + 3, 16) ||
        !take_id(out->span, text.ptr + 36, 8) || !hapax__unhex(&out->flags, text.ptr + 53, 1))
        return false;
    if (text.len == HAPAX__TRACE_TEXT)
        return version != 0xff;
    return version > 0 && version != 0xff && text.ptr[HAPAX__TRACE_TEXT] == '-';
}

void hapax__trace_write(char out[HAPAX_TRACE_MAX], const struct hapax__trace *trace)
{
    char *at = out;

    *at++ = '0';
    *at++ = '0';
    *at++ = '-';
    at = hapax__hex(at, trace->trace, sizeof(trace->trace));
    *at++ = '-';
    at = hapax__hex(at, trace->span, sizeof(trace->span));
    *at++ = '-';
    at = hapax__hex(at, &trace->flags, 1);
    *at = '\0';
}

void hapax__trace_line(uint8_t out[HAPAX__TRACE_LINE], const char text[HAPAX_TRACE_MAX])
{
    static const char name[] = HAPAX__TRACE_NAME;

    memcpy(out, name, sizeof(name) - 1);
    memcpy(out + sizeof(name) - 1, text, HAPAX__TRACE_TEXT);
    memcpy(out + HAPAX__TRACE_LINE - 2, "\r\n", 2);
}

void hapax__trace_take(char out[HAPAX_TRACE_MAX], struct hapax_span *headers)
{
    static const char name[] = HAPAX__TRACE_NAME;
    struct hapax_span text = {NULL, HAPAX__TRACE_TEXT};
    struct hapax__trace trace;

    out[0] = '\0';
    if (headers->len < HAPAX__TRACE_LINE || memcmp(headers->ptr, name, sizeof(name) - 1) != 0)
        return;
    text.ptr = headers->ptr + sizeof(name) - 1;
    if (!hapax__trace_read(&trace, text) || memcmp(text.ptr + text.len, "\r\n", 2) != 0)
        return;
    memcpy(out, text.ptr, text.len);
    memcpy(out, "00", 2);
    out[text.len] = '\0';
    headers->ptr += HAPAX__TRACE_LINE;
    headers->len -= HAPAX__TRACE_LINE;
}
