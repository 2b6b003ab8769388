/* SPDX-License-Identifier: Apache-2.0
 *
 * "did you mean": which of the known names a mistyped word is nearest to.
 *
 * The distance is the number of letters to add, leave out, change, or swap with their neighbour. A
 * beginning of a name is near, too. A third of the letters may be wrong: further off, a suggestion
 * misleads more often than it helps.
 */
#include "cli.h"

#include <string.h>

#define LETTERS_MAX 32u

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[LETTERS_MAX + 1][LETTERS_MAX + 1];

    for (size_t i = 0; i <= a_len; i++)
        for (size_t j = 0; j <= b_len; j++) {
            if (i == 0 || j == 0) {
                rows[i][j] = (unsigned)(i + j);
                continue;
            }
            rows[i][j] = least(least(rows[i - 1][j], rows[i][j - 1]) + 1,
                               rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                rows[i][j] = least(rows[i][j], rows[i - 2][j - 2] + 1);
        }
    return rows[a_len][b_len];
}

void cli_nearest_look(struct cli_nearest *nearest, const char *name)
{
    size_t len = strlen(name);
    unsigned far;

    if (nearest->len > LETTERS_MAX || len > LETTERS_MAX)
        return;
    far = nearest->len > 2 && nearest->len < len && memcmp(nearest->word, name, nearest->len) == 0
              ? 1
              : distance(nearest->word, nearest->len, name, len);
    if (far > (nearest->len + 1) / 3 || (nearest->name && far >= nearest->far))
        return;
    nearest->name = name;
    nearest->far = far;
}

/* ---- commands ------------------------------------------------------------------------ */

const struct cli_command *cli_command_find(const char *name)
{
    for (size_t i = 0; cli_commands[i]; i++)
        if (strcmp(cli_commands[i]->name, name) == 0)
            return cli_commands[i];
    return NULL;
}

void cli_command_advice(char out[128], const char *word)
{
    struct cli_nearest nearest = {.word = word, .len = strlen(word)};

    for (size_t i = 0; cli_commands[i]; i++)
        cli_nearest_look(&nearest, cli_commands[i]->name);
    if (nearest.name)
        (void)snprintf(out, 128, ": did you mean \"%s\"?", nearest.name);
    else
        (void)snprintf(out, 128, "; \"hapax help\" lists them");
}
