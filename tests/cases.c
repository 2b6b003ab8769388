/* SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

#include "must.h"

static struct CMUnitTest cases[256];
static size_t count;

void cases_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
               CMFixtureFunction teardown)
{
    must(count < sizeof(cases) / sizeof(cases[0]));
    cases[count++] = (struct CMUnitTest){name, run, setup, teardown, NULL};
}

int cases_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests("cases", cases, count, setup, teardown);
}
