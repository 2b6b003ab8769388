/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without a fuzzer: `fuzz_X CORPUS [MUTATIONS]` gives it every file of a
 * directory, in the order of their names, and that many mutations of each (default 2000), the same
 * ones in every run. Every other one is the target's own, if it has some. An input that breaks a
 * claim aborts; `fuzz_X FILE` runs that one alone.
 */
#include "fuzz.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>

#define INPUT_MAX   65536u
#define FILES_MAX   256
#define CHANGES_MAX 4

struct input {
    size_t len;
    uint8_t bytes[INPUT_MAX];
};

static struct input *files[FILES_MAX];
static size_t files_len;

static uint64_t seed = 0x9e3779b97f4a7c15;

/* xorshift64*: small, and the same everywhere. */
static size_t below(size_t n)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (size_t)(seed * 0x2545f4914f6cdd1d >> 16) % n;
}

static bool load(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct input *input = malloc(sizeof(*input));

    if (!file || !input || files_len == FILES_MAX) {
        fprintf(stderr, "cannot read \"%s\": %s\n", path,
                files_len == FILES_MAX ? "too many files" : strerror(errno));
        if (file)
            fclose(file);
        free(input);
        return false;
    }
    input->len = fread(input->bytes, 1, sizeof(input->bytes), file);
    fclose(file);
    files[files_len++] = input;
    return true;
}

static bool load_all(const char *directory)
{
    struct dirent **names = NULL;
    char path[4096];
    bool loaded = true;
    int n = scandir(directory, &names, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            loaded &= load(path);
        free(names[i]);
    }
    free(names);
    return n >= 0 && loaded;
}

/* A copy of exactly its size, so that a sanitizer sees the first byte read behind it. */
static void run(const struct input *input)
{
    uint8_t *copy = malloc(input->len > 0 ? input->len : 1);

    if (!copy)
        abort();
    memcpy(copy, input->bytes, input->len);
    if (LLVMFuzzerTestOneInput(copy, input->len) != 0)
        abort();
    free(copy);
}

static void move_tail(struct input *input, size_t from, size_t to)
{
    memmove(input->bytes + to, input->bytes + from, input->len - from);
    input->len = input->len - from + to;
}

static void change(struct input *input)
{
    static const uint8_t telling[] = {0,   1,   0x7f, 0x80, 0xff, '"', '\\',
                                      ',', ';', '{',  '[',  '0',  'e'};
    size_t at = below(input->len + 1);
    size_t len = below(16) + 1;
    const struct input *other = files[below(files_len)];

    switch (below(6)) {
    case 0: /* flip a bit */
        if (at < input->len)
            input->bytes[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1: /* set a byte */
        if (at < input->len)
            input->bytes[at] = telling[below(sizeof(telling))];
        break;
    case 2: /* cut the end off */
        input->len = at;
        break;
    case 3: /* cut out */
        if (at + len <= input->len)
            move_tail(input, at + len, at);
        break;
    case 4: /* put a byte in, several times */
        if (input->len + len <= INPUT_MAX) {
            move_tail(input, at, at + len);
            memset(input->bytes + at, telling[below(sizeof(telling))], len);
        }
        break;
    default: /* go on as another file does */
        len = at < other->len ? other->len - at : 0;
        memcpy(input->bytes + at, other->bytes + at, len);
        input->len = at + len;
        break;
    }
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max)
{
    static struct input input;

    assert(size <= INPUT_MAX);
    input.len = size;
    memcpy(input.bytes, data, size);
    change(&input);
    if (input.len > max)
        input.len = max;
    memcpy(data, input.bytes, input.len);
    return input.len;
}

static void run_mutations(size_t mutations)
{
    static struct input input;

    for (size_t i = 0; i < files_len; i++) {
        for (size_t m = 0; m < mutations; m++) {
            size_t changes = 1 + below(CHANGES_MAX);

            input.len = files[i]->len;
            memcpy(input.bytes, files[i]->bytes, input.len);
            while (changes-- > 0)
                if (LLVMFuzzerCustomMutator && m % 2 == 1)
                    input.len = LLVMFuzzerCustomMutator(input.bytes, input.len, INPUT_MAX,
                                                        (unsigned)below(UINT32_MAX));
                else
                    change(&input);
            run(&input);
        }
    }
}

int main(int argc, char **argv)
{
    size_t mutations = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    struct stat info;
    bool directory;

    if (argc < 2 || argc > 3 || stat(argv[1], &info) != 0) {
        fprintf(stderr, "usage: %s CORPUS [MUTATIONS] | FILE\n", argv[0]);
        return 2;
    }
    directory = S_ISDIR(info.st_mode);
    if (!(directory ? load_all(argv[1]) : load(argv[1])))
        return 1;
    if (files_len == 0) {
        fprintf(stderr, "corpus \"%s\" is empty\n", argv[1]);
        return 1;
    }
    for (size_t i = 0; i < files_len; i++)
        run(files[i]);
    if (directory)
        run_mutations(mutations);
    printf("%zu inputs, %zu mutations of each\n", files_len, directory ? mutations : 0);
    for (size_t i = 0; i < files_len; i++)
        free(files[i]);
    return 0;
}
