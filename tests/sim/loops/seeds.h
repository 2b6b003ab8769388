/* SPDX-License-Identifier: Apache-2.0
 *
 * Plays many seeds, and prints the first one that fails, and the marks.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_SEEDS_H
#define HAPAX_TESTS_SIM_LOOPS_SEEDS_H

#include <stdint.h>

int seeds_main(int argc, char **argv, void (*schedule)(uint64_t seed), const uint64_t *marks,
               const char *const *mark_names, int marks_count);

#endif
