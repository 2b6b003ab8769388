/* SPDX-License-Identifier: Apache-2.0
 *
 * What every fuzz target defines. Built with -Dfuzzers=true it is driven by libFuzzer, else by
 * standalone.c as an ordinary test. It returns 0 and aborts where a claim of its head is broken.
 */
#ifndef HAPAX_TESTS_FUZZ_FUZZ_H
#define HAPAX_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
