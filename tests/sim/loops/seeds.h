/* SPDX-License-Identifier: Apache-2.0
 *
 * Plays many seeds, and prints the first one that fails, and the marks.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_SEEDS_H
#define HAPAX_TESTS_SIM_LOOPS_SEEDS_H

#include <stdint.h>

/* What a schedule may meet, of a list of names MARKS(X): MARK_name for each, the counts, and the
 * names as text. */
#define SEEDS_MARK(name) MARK_##name,
#define SEEDS_NAME(name) #name,
#define SEEDS_MARKS(MARKS)                                                                         \
    enum { MARKS(SEEDS_MARK) MARKS_COUNT };                                                        \
    static uint64_t marks[MARKS_COUNT];                                                            \
    static const char *const mark_names[] = {MARKS(SEEDS_NAME)};                                   \
                                                                                                   \
    static void mark(int which)                                                                    \
    {                                                                                              \
        marks[which]++;                                                                            \
    }

int seeds_main(int argc, char **argv, void (*schedule)(uint64_t seed), const uint64_t *marks,
               const char *const *mark_names, int marks_count);

#endif
