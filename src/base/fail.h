/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of errors, and lines of `check`.
 */
#ifndef HAPAX_BASE_FAIL_H
#define HAPAX_BASE_FAIL_H

#include <hapax/store.h>

/* Says a line, printf-like, cut to HAPAX_TEXT_MAX: for `check`. */
void hapax__tell(hapax_say *say, void *arg, bool danger, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets text, printf-like; returns error. */
HAPAX__SHARED enum hapax_error hapax__fail(char text[HAPAX_TEXT_MAX], enum hapax_error error,
                                           const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
