/* SPDX-License-Identifier: Apache-2.0
 *
 * must(CLAIM): what has to hold in a thread or a helper of a test. If it does not, the program ends
 * at once. cmocka's assertions must not be used there: they jump out of another thread's stack, or
 * past what has to be undone.
 */
#ifndef HAPAX_TESTS_MUST_H
#define HAPAX_TESTS_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(claim)                                                                                \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim);                    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
