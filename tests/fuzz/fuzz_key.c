/* SPDX-License-Identifier: Apache-2.0
 *
 * The key parser. Claims: a text that it accepts gives a key within its limits, and the quoted key
 * gives the same key again. A text that it refuses has a reason.
 */
#include "fuzz.h"

#include <assert.h>
#include <hapax/hapax.h>

/* The key as an RFC 8941 String. */
static size_t quote(uint8_t *out, const uint8_t *key, size_t len)
{
    size_t n = 0;

    out[n++] = '"';
    for (size_t i = 0; i < len; i++) {
        if (key[i] == '"' || key[i] == '\\')
            out[n++] = '\\';
        out[n++] = key[i];
    }
    out[n++] = '"';
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t key[HAPAX_KEY_MAX];
    uint8_t again[HAPAX_KEY_MAX];
    uint8_t quoted[2 * HAPAX_KEY_MAX + 2];
    size_t len = 0;
    size_t again_len = 0;
    const char *why = "";
    enum hapax_error error = hapax_key_parse(key, &len, (struct hapax_span){data, size}, &why);

    if (error != HAPAX_ERR_NONE) {
        assert(error == HAPAX_ERR_INVALID && why && *why);
        return 0;
    }
    assert(!why && len >= 1 && len <= sizeof(key));
    for (size_t i = 0; i < len; i++)
        assert(key[i] >= 0x20 && key[i] <= 0x7e);
    error = hapax_key_parse(again, &again_len, (struct hapax_span){quoted, quote(quoted, key, len)},
                            &why);
    assert(error == HAPAX_ERR_NONE);
    assert(again_len == len && memcmp(key, again, len) == 0);
    return 0;
}
