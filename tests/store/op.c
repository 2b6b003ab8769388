/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one op against a store, for tests that need a record in a state no command makes:
 *
 *     op URI claim    KEY TOKEN [LEASE_MS [rerun|hold [RETENTION_MS [SCOPE]]]]
 *     op URI complete KEY TOKEN STATUS HEADERS BODY [SCOPE]
 *     op URI owned    KEY TOKEN OWNER WHAT        a claim
 *     op URI fail     KEY TOKEN ran|not-run|unknown [SCOPE [STATUS]]
 *     op URI bind     SECRET
 *     op URI purge    -
 *     op URI          each line of stdin is such an op, all on one handle
 *
 * TOKEN is a digit or letter, repeated to make one, or 32 digits of hex. \r, \n, \xNN and \\ are
 * read in HEADERS and BODY. Prints the verdict or the error, and the store's text on stderr; exit 1
 * on an error.
 */
#include <hapax/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t bytes[2][4096];

static struct hapax_span unescape(int at, const char *text)
{
    size_t len = 0;

    for (; *text && len < sizeof(bytes[at]); len++, text++) {
        char hex[3] = "";

        bytes[at][len] = (uint8_t)*text;
        if (*text != '\\')
            continue;
        text++;
        bytes[at][len] = (uint8_t)(*text == 'r' ? '\r' : *text == 'n' ? '\n' : *text);
        if (*text == 'x' && text[1] && text[2]) {
            memcpy(hex, text + 1, 2);
            bytes[at][len] = (uint8_t)strtoul(hex, NULL, 16);
            text += 2;
        }
    }
    return (struct hapax_span){bytes[at], len};
}

static const char *word(int argc, char **argv, int at, const char *otherwise)
{
    return at < argc ? argv[at] : otherwise;
}

static void make_token(struct hapax_token *token, const char *text)
{
    memset(token->bytes, text[0], sizeof(token->bytes));
    for (size_t i = 0; strlen(text) == 2 * sizeof(token->bytes) && i < sizeof(token->bytes); i++)
        token->bytes[i] = (uint8_t)strtoul((char[]){text[2 * i], text[2 * i + 1], 0}, NULL, 16);
}

static void make_claim(struct hapax_op *op, int argc, char **argv)
{
    op->kind = HAPAX_OP_CLAIM;
    op->lease_ms = strtoll(word(argc, argv, 5, "30000"), NULL, 10);
    op->on_expired = strcmp(word(argc, argv, 6, "rerun"), "hold") == 0 ? HAPAX_EXPIRED_HOLD
                                                                       : HAPAX_EXPIRED_RERUN;
    op->retention_ms = strtoll(word(argc, argv, 7, "86400000"), NULL, 10);
    op->scope = hapax_str(word(argc, argv, 8, "default"));
}

static void make_complete(struct hapax_op *op, int argc, char **argv)
{
    op->kind = HAPAX_OP_COMPLETE;
    op->outcome.status = (int)strtol(word(argc, argv, 5, "200"), NULL, 10);
    op->outcome.headers = unescape(0, word(argc, argv, 6, ""));
    op->outcome.body = unescape(1, word(argc, argv, 7, ""));
    op->outcome.body_kept = true;
    op->scope = hapax_str(word(argc, argv, 8, "default"));
}

static void make_fail(struct hapax_op *op, int argc, char **argv)
{
    const char *how = word(argc, argv, 5, "ran");

    op->kind = HAPAX_OP_FAIL;
    op->ran = strcmp(how, "not-run") != 0;
    op->as_unknown = strcmp(how, "unknown") == 0;
    op->scope = hapax_str(word(argc, argv, 6, "default"));
    op->outcome.status = (int)strtol(word(argc, argv, 7, "0"), NULL, 10);
}

/* A claim of an owner's, and what it is. */
static void make_owned(struct hapax_op *op, char **argv)
{
    make_claim(op, 0, argv);
    (void)hapax_owner(&op->owner, hapax_str(argv[5]), hapax_str(NULL));
    op->what = hapax_str(argv[6]);
}

/* The scope goes into the id, so that what an answer shows of it is the op's. */
static bool same_scope(const struct hapax_op *op)
{
    const struct hapax_span *shown = &op->record.scope;

    return shown->len == 0 ||
           (shown->len == op->scope.len && memcmp(shown->ptr, op->scope.ptr, shown->len) == 0);
}

/* argv[2] and on say the op. */
static enum hapax_error run(struct hapax_store *store, int argc, char **argv)
{
    struct hapax_op op = {.kind = 0};
    bool owned = strcmp(argv[2], "owned") == 0 && argc == 7;
    enum hapax_error error;

    if (owned)
        make_owned(&op, argv);
    else if (strcmp(argv[2], "claim") == 0)
        make_claim(&op, argc, argv);
    else if (strcmp(argv[2], "complete") == 0)
        make_complete(&op, argc, argv);
    else if (strcmp(argv[2], "fail") == 0)
        make_fail(&op, argc, argv);
    else if (strcmp(argv[2], "purge") == 0)
        op.kind = HAPAX_OP_PURGE;
    if (strcmp(argv[2], "bind") == 0) {
        error = hapax_store_bind(store, hapax_str(argv[3]));
    } else {
        make_token(&op.token, word(argc, argv, 4, "1"));
        (void)hapax_owned_id(&op.id, hapax_str(owned ? argv[5] : NULL), op.scope,
                             hapax_str(argv[3]), hapax_str(NULL), hapax_str(NULL));
        error = hapax_store_run(store, &op, 1);
    }
    if (error == HAPAX_ERR_NONE && !same_scope(&op))
        puts("wrong scope");
    else
        puts(error == HAPAX_ERR_NONE ? hapax_verdict_name(op.verdict) : hapax_error_name(error));
    fflush(stdout);
    if (error != HAPAX_ERR_NONE)
        fprintf(stderr, "%s\n", hapax_store_text(store));
    return error;
}

static void run_lines(struct hapax_store *store, char *uri)
{
    char line[4096];

    while (fgets(line, sizeof(line), stdin)) {
        char *argv[16] = {"op", uri}, *rest = line;
        int argc = 2;

        while (argc < 16 && (argv[argc] = strsep(&rest, " \n")) != NULL)
            argc += argv[argc][0] != '\0';
        if (argc >= 4)
            (void)run(store, argc, argv);
    }
}

int main(int argc, char **argv)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    enum hapax_error error = HAPAX_ERR_NONE;

    if (argc != 2 && argc < 4)
        return 2;
#ifdef HAPAX_TEST_ROCKSDB
    hapax_rocksdb_use();
#endif
    if (hapax_store_open(&store, argv[1], text) != HAPAX_ERR_NONE) {
        puts(text);
        return 1;
    }
    if (argc == 2)
        run_lines(store, argv[1]);
    else
        error = run(store, argc, argv);
    hapax_store_close(store);
    return error != HAPAX_ERR_NONE;
}
