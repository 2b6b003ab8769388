/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>

enum hapax_error hapax__fail(char text[HAPAX_TEXT_MAX], enum hapax_error error, const char *format,
                             ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(text, HAPAX_TEXT_MAX, format, args);
    va_end(args);
    return error;
}

void hapax__tell(hapax_say *say, void *arg, bool danger, const char *format, ...)
{
    char line[HAPAX_TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    say(arg, danger, line);
}
