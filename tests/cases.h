/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of cmocka that register themselves: CASE(name) { … }. All cases of a program run in the
 * order of its file, so none can be written and then forgotten in a list. A program without a
 * main() of its own gets one that runs them.
 */
#ifndef HAPAX_TESTS_CASES_H
#define HAPAX_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Defines a case with the setup and the teardown of cmocka_unit_test_setup_teardown(). */
#define CASE_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        cases_add(#name, name, setup, teardown);                                                   \
    }                                                                                              \
    static void name(void **state)

#define CASE(name) CASE_WITH(name, NULL, NULL)

void cases_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
               CMFixtureFunction teardown);

/* Runs them all, between a setup and a teardown of the group, which may be NULL. Returns how many
 * failed. */
int cases_run(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
