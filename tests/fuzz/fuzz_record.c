/* SPDX-License-Identifier: Apache-2.0
 *
 * The record codec. Claims: bytes that decode are encoded to the same bytes, and the peek says the
 * same of them. Changed bytes never have a good checksum. So each input is also tried with the
 * checksum of the rest in its last 8 bytes: only so the codec meets fields that no encoder wrote.
 */
#include "fuzz.h"

#include "core/record.h"

#include <assert.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const struct hapax_id id = {{1, 2, 3}};

static void try_decode(struct hapax_span bytes, bool sound)
{
    struct hapax_record record, seen;
    enum hapax_error error = hapax__record_decode(&record, &id, bytes);
    bool peeked = hapax__record_peek(&seen, bytes);
    uint8_t *again;

    if (error != HAPAX_ERR_NONE) {
        assert(error == HAPAX_ERR_CORRUPT || error == HAPAX_ERR_UNSUPPORTED);
        return;
    }
    assert(sound && peeked && seen.state == record.state && seen.expires_us == record.expires_us);
    if (bytes.ptr[0] != HAPAX__RECORD_VERSION) /* written anew in another form */
        return;
    assert(hapax__record_size(&record) == bytes.len);
    again = malloc(bytes.len);
    assert(again);
    hapax__record_encode(again, &record);
    assert(memcmp(again, bytes.ptr, bytes.len) == 0);
    free(again);
}

static uint64_t checksum(const uint8_t *bytes, size_t len)
{
    return XXH3_64bits_withSeed(bytes, len, XXH3_64bits(id.bytes, sizeof(id.bytes)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t len = size < 8 ? 0 : size - 8;
    uint64_t sum = checksum(data, len);
    uint8_t *copy = malloc(size + 1);
    uint64_t had = 0;

    assert(copy);
    memcpy(copy, data, size);
    for (size_t i = len; i < size; i++)
        had = had << 8 | data[i];
    try_decode((struct hapax_span){copy, size}, had == sum);
    for (size_t i = 0; len > 0 && i < 8; i++)
        copy[len + i] = (uint8_t)(sum >> (56 - 8 * i));
    try_decode((struct hapax_span){copy, size}, true);
    free(copy);
    return 0;
}
