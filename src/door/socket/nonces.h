/* SPDX-License-Identifier: Apache-2.0
 *
 * The nonces that clients have sent to this door. A nonce becomes the token of a claim, so that a
 * BEGIN repeated at the next door is granted the claim of this one. To a door that knows the nonce
 * already, the same BEGIN is another attempt, with a token of its own: the flow of the first may
 * still follow up its claim, and would end the claim of the second.
 *
 * The set is bounded. It forgets the oldest of nonces that fall into one row.
 */
#ifndef HAPAX_DOOR_SOCKET_NONCES_H
#define HAPAX_DOOR_SOCKET_NONCES_H

#include <hapax/hapax.h>
#include <string.h>

#define HAPAX__NONCES_ROWS 16384u
#define HAPAX__NONCES_ROW  8u

struct hapax__nonces {
    struct hapax__nonces_row {
        struct hapax_token seen[HAPAX__NONCES_ROW];
        uint8_t next;
    } * rows;
};

/* Adds a nonce. False: it was there. */
static inline bool hapax__nonces_add(struct hapax__nonces *nonces, const struct hapax_token *nonce)
{
    struct hapax__nonces_row *row;
    uint64_t half[2], hash;

    _Static_assert(sizeof(half) == sizeof(nonce->bytes), "all bytes choose the row");
    memcpy(half, nonce->bytes, sizeof(half));
    /* The upper bits of the product hang on all of its factor. */
    hash = (half[0] ^ half[1]) * UINT64_C(0x9E3779B97F4A7C15);
    row = &nonces->rows[(hash >> 50) % HAPAX__NONCES_ROWS];
    for (size_t i = 0; i < HAPAX__NONCES_ROW; i++)
        if (memcmp(&row->seen[i], nonce, sizeof(*nonce)) == 0)
            return false;
    row->seen[row->next] = *nonce;
    row->next = (uint8_t)((row->next + 1) % HAPAX__NONCES_ROW);
    return true;
}

#endif
