/* SPDX-License-Identifier: Apache-2.0
 *
 * The main() of a program that has none. It stands alone, so that the linker leaves it out where a
 * program has one.
 */
#include "cases.h"

int main(void)
{
    return cases_run(NULL, NULL);
}
