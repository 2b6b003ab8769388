/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of id and token. It is written here once: the HTTP door and the C door give out the same
 * text, and a store compares it byte by byte, whichever of the doors asked that store.
 * Rejected: the token alone. Whoever completes the record would need the id too, and the id is made
 * of scope, key, step and a secret that a handler should not know.
 */
#include "token.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <string.h>

void hapax__token_text(char out[HAPAX__TOKEN_TEXT + 1], const struct hapax_id *id,
                       const struct hapax_token *token)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t raw[sizeof(id->bytes) + sizeof(token->bytes)];
    char *at = out;

    static_assert(sizeof(raw) % 3 == 0 && sizeof(raw) / 3 * 4 == HAPAX__TOKEN_TEXT, "no padding");
    memcpy(raw, id->bytes, sizeof(id->bytes));
    memcpy(raw + sizeof(id->bytes), token->bytes, sizeof(token->bytes));
    for (size_t i = 0; i < sizeof(raw); i += 3) {
        uint32_t three = (uint32_t)raw[i] << 16 | (uint32_t)raw[i + 1] << 8 | raw[i + 2];

        for (int shift = 18; shift >= 0; shift -= 6)
            *at++ = digits[three >> shift & 63];
    }
    *at = '\0';
    assert(at == out + HAPAX__TOKEN_TEXT);
    OPENSSL_cleanse(raw, sizeof(raw));
}
