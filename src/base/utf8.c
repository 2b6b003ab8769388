/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8, one character at a time; ASCII eight bytes at a time.
 */
#include "utf8.h"

#include <string.h>

size_t hapax__utf8_read(uint32_t *character, const uint8_t *at, size_t left)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    uint32_t value;

    if (len == 0 || at[0] > 0xf4 || len > left)
        return 0;
    value = len == 1 ? at[0] : at[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    if (value < least[len] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *character = value;
    return len;
}

size_t hapax__utf8_write(uint8_t out[4], uint32_t c)
{
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = len; i-- > 1; c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)(len == 1 ? c : (0xf00u >> len & 0xff) | c);
    return len;
}

bool hapax__is_utf8(struct hapax_span bytes)
{
    uint32_t character;

    for (size_t i = 0, len; i < bytes.len; i += len) {
        uint64_t eight;

        if (bytes.len - i >= sizeof(eight)) {
            memcpy(&eight, bytes.ptr + i, sizeof(eight));
            if (!(eight & UINT64_C(0x8080808080808080))) {
                len = sizeof(eight);
                continue;
            }
        }
        len = hapax__utf8_read(&character, bytes.ptr + i, bytes.len - i);
        if (len == 0)
            return false;
    }
    return true;
}
