/* SPDX-License-Identifier: Apache-2.0
 *
 * What the targets that read URIs share: they read the input alone, and the input behind a login,
 * whose password nothing may show.
 */
#ifndef HAPAX_TESTS_FUZZ_FUZZ_URI_H
#define HAPAX_TESTS_FUZZ_FUZZ_URI_H

#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PASSWORD "Hu5h-Hu5h"

/* Reads a URI and looks at what came of it; hidden: what no text of it has, NULL: nothing. */
typedef void fuzz_read_uri(const char *uri, const char *hidden);

/* login: what a URI begins with, PASSWORD in it; whatever follows it belongs to no password. */
static inline void fuzz_uri(const uint8_t *data, size_t size, const char *login,
                            fuzz_read_uri *read_uri)
{
    char *uri = malloc(size + strlen(login) + 1);
    size_t n = 0;

    assert(uri);
    for (size_t i = 0; i < size; i++)
        if (data[i] != '\0')
            uri[n++] = (char)data[i];
    uri[n] = '\0';
    read_uri(uri, NULL);
    if (!strstr(uri, PASSWORD)) { /* a fuzzer reads what it is compared with */
        memmove(uri + strlen(login), uri, n + 1);
        memcpy(uri, login, strlen(login));
        read_uri(uri, PASSWORD);
    }
    free(uri);
}

#endif
