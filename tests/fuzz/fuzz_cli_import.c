/* SPDX-License-Identifier: Apache-2.0
 *
 * The lines of hapax import. The input is the file.
 * Claims: it is read to its end, or refused with the number of a line that is there. A dry run
 * refuses what a run refuses, in the same words; a run leaves nothing that a dry run did not read.
 */
#include "fuzz_cli.h"

#define LINE "hapax import: line "

struct told {
    enum cli_exit exit;
    char *text; /* for free() */
};

static struct told import(struct hapax_span file, bool dry)
{
    struct cli_args *args = cli_args_new(&cli_import);
    struct fuzz_said said;
    struct told told;
    char path[64];
    int fd = fuzz_file(path, file);

    assert(args);
    args->operand = path;
    args->store = args->shown = "memory:";
    if (dry)
        (void)cli_give(args, "dry-run", NULL);
    fuzz_said_begin(&said);
    told.exit = cli_import.run(args);
    fuzz_said_end(&said);
    told.text = said.text;
    cli_args_free(args);
    close(fd);
    return told;
}

static unsigned long lines_of(struct hapax_span text)
{
    unsigned long n = 1;

    for (size_t i = 0; i < text.len; i++)
        n += text.ptr[i] == '\n';
    return n;
}

/* Why the file is refused, for free(); "": it is not. */
static char *refusal(const char *text)
{
    const char *at = strstr(text, LINE);

    return fuzz_copy((struct hapax_span){(const uint8_t *)at, at ? strcspn(at, "\n") : 0});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span file = {data, size};
    struct told dry = import(file, true), real = import(file, false);
    char *why = refusal(dry.text), *again = refusal(real.text);

    assert(strcmp(why, again) == 0);
    if (*why) {
        unsigned long line = strtoul(why + strlen(LINE), NULL, 10);

        assert(line >= 1 && line <= lines_of(file));
        assert(dry.exit == CLI_USAGE && real.exit == CLI_USAGE);
    } else { /* NO: a key comes twice, with another answer */
        assert(dry.exit == CLI_DONE && (real.exit == CLI_DONE || real.exit == CLI_NO));
        assert(!strstr(real.text, "could not be put"));
    }
    free(why);
    free(again);
    free(dry.text);
    free(real.text);
    return 0;
}
