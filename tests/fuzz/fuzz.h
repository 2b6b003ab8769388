/* SPDX-License-Identifier: Apache-2.0
 *
 * What every fuzz target defines: a function that returns 0, and aborts where a claim of the file's
 * head is broken. libFuzzer calls it in a build with -Dfuzzers=true; otherwise standalone.c does,
 * as an ordinary test.
 */
#ifndef HAPAX_TESTS_FUZZ_FUZZ_H
#define HAPAX_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A target whose inputs have lengths in them may define how an input is changed, so that the
 * lengths stay true: otherwise nearly every change is refused before it is looked at. Returns the
 * new size, at most max. It changes bytes by the second function, which libFuzzer and standalone.c
 * have. */
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max,
                                                     unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

#endif
