/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operation is, as a text that any terminal and any JSON can show. What comes in may be
 * anybody's bytes; what goes out is UTF-8 without controls, and never cut within a character.
 */
#include "base/utf8.h"

#include <hapax/store.h>
#include <string.h>

#define MARK     "\xe2\x80\xa6" /* … */
#define MARK_LEN (sizeof(MARK) - 1)

struct text {
    uint8_t *out;
    size_t len;
    size_t cut_len; /* how much may stay where the mark has to follow */
};

static bool put(struct text *text, const uint8_t *bytes, size_t len)
{
    if (text->len + len > HAPAX_WHAT_MAX)
        return false;
    memcpy(text->out + text->len, bytes, len);
    text->len += len;
    if (text->len <= HAPAX_WHAT_MAX - MARK_LEN)
        text->cut_len = text->len;
    return true;
}

static bool is_control(uint32_t character)
{
    return character < 0x20 || (character >= 0x7f && character < 0xa0);
}

static bool put_part(struct text *text, struct hapax_span part)
{
    bool fits = text->len == 0 || part.len == 0 || put(text, (const uint8_t *)" ", 1);

    for (size_t i = 0, len; i < part.len && fits; i += len) {
        uint32_t character = 0;

        len = hapax__utf8_read(&character, part.ptr + i, part.len - i);
        if (len == 0 || is_control(character)) {
            fits = put(text, (const uint8_t *)"?", 1);
            len += len == 0;
        } else {
            fits = put(text, part.ptr + i, len);
        }
    }
    return fits;
}

size_t hapax_what(uint8_t out[HAPAX_WHAT_MAX], const struct hapax_span *parts, size_t n)
{
    struct text text = {.out = out};

    for (size_t i = 0; i < n; i++) {
        if (put_part(&text, parts[i]))
            continue;
        memcpy(out + text.cut_len, MARK, MARK_LEN);
        return text.cut_len + MARK_LEN;
    }
    return text.len;
}
