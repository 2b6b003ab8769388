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

#endif
