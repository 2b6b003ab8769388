/* SPDX-License-Identifier: Apache-2.0
 *
 * Base64. Rejected: libcrypto's, which takes padding in the middle for zeros.
 */
#include "base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void hapax__base64_encode(char *out, struct hapax_span bytes)
{
    for (size_t i = 0; i < bytes.len; i += 3, out += 4) {
        size_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        uint32_t bits = (uint32_t)bytes.ptr[i] << 16;

        bits |= n > 1 ? (uint32_t)bytes.ptr[i + 1] << 8 : 0;
        bits |= n > 2 ? bytes.ptr[i + 2] : 0;
        out[0] = digits[bits >> 18];
        out[1] = digits[bits >> 12 & 63];
        out[2] = n > 1 ? digits[bits >> 6 & 63] : '=';
        out[3] = n > 2 ? digits[bits & 63] : '=';
    }
}

bool hapax__base64_decode(uint8_t *out, size_t *len, struct hapax_span in)
{
    uint8_t values[256] = {0}; /* of a digit, its value and 64 */
    uint32_t bits = 0, have = 0;
    size_t n = 0, padded = in.len;

    for (uint8_t i = 0; i < 64; i++)
        values[(uint8_t)digits[i]] = 64 | i;
    while (in.len > 0 && in.ptr[in.len - 1] == '=')
        in.len--;
    if (in.len % 4 == 1 || (in.len < padded && padded != (in.len + 3) / 4 * 4))
        return false;
    for (size_t i = 0; i < in.len; i++) {
        uint8_t value = values[in.ptr[i]];

        if (!value)
            return false;
        bits = bits << 6 | (value & 63);
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (uint8_t)(bits >> have);
        }
    }
    *len = n;
    return true;
}
