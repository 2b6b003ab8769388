/* SPDX-License-Identifier: Apache-2.0
 *
 * RESP, as a table: what is read, what is refused, and at which limit. Each row is read at once,
 * byte by byte, and cut in two at every place; all must come to the same. Then hiredis' reader, the
 * peer: of the rows, of the fuzzer's corpus and of mutations of both, what is read is what hiredis
 * reads. /
 */
#include "../cases.h"
#include "store/redis/reader.h"

#include <dirent.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *corpus;
static unsigned mutations = 500; /* of each row, and a quarter as many of each file */

/* Writes a reply as text: "s" status, "e" error, ":" integer, "'…'" bulk, "nil", "[…]". */
static void show(FILE *out, const struct hapax__resp *reply)
{
    switch (reply->type) {
    case HAPAX__RESP_STATUS:
        fprintf(out, "s(%s)", reply->str);
        break;
    case HAPAX__RESP_ERROR:
        fprintf(out, "e(%s)", reply->str);
        break;
    case HAPAX__RESP_INTEGER:
        fprintf(out, ":%lld", reply->integer);
        break;
    case HAPAX__RESP_STRING:
        assert_int_equal(reply->str[reply->len], '\0');
        fprintf(out, "'%.*s'", (int)reply->len, reply->str);
        break;
    case HAPAX__RESP_NIL:
        fprintf(out, "nil");
        break;
    default:
        assert_int_equal(reply->type, HAPAX__RESP_ARRAY);
        fputc('[', out);
        for (size_t i = 0; i < reply->elements; i++) {
            fputs(i > 0 ? " " : "", out);
            show(out, reply->element[i]);
        }
        fputc(']', out);
    }
}

/* Gives the reader bytes in pieces that end at `cut` and then each of `step` bytes. */
static const char *feed(struct hapax__redis_reader *reader, const char *bytes, size_t len,
                        size_t cut, size_t step)
{
    const char *fault = NULL;

    for (size_t at = 0; at < len && !fault;) {
        size_t n = at < cut ? cut - at : step;
        size_t room;
        void *to = hapax__redis_reader_room(reader, &room);

        n = n < len - at ? n : len - at;
        n = n < room ? n : room;
        memcpy(to, bytes + at, n);
        fault = hapax__redis_reader_took(reader, n);
        at += n;
    }
    return fault;
}

static void read_in_pieces(const char *bytes, size_t len, size_t wants, const char *expected,
                           size_t cut, size_t step)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    char *shown = NULL;
    size_t shown_len = 0;
    FILE *out = open_memstream(&shown, &shown_len);
    struct hapax__resp *reply;
    const char *fault;

    assert_non_null(reader);
    assert_non_null(out);
    for (size_t i = 0; i < wants; i++)
        assert_true(hapax__redis_reader_want(reader));
    fault = feed(reader, bytes, len, cut, step);
    while ((reply = hapax__redis_reader_next(reader)) != NULL) {
        show(out, reply);
        fputc(';', out);
        hapax__resp_free(reply);
    }
    if (fault)
        fprintf(out, "!%s", fault);
    fclose(out);
    assert_string_equal(shown, expected);
    free(shown);
    hapax__redis_reader_close(reader);
}

static void read_as(const char *bytes, size_t len, size_t wants, const char *expected)
{
    read_in_pieces(bytes, len, wants, expected, 0, len);
    read_in_pieces(bytes, len, wants, expected, 0, 1);
    for (size_t cut = 1; cut < len; cut++)
        read_in_pieces(bytes, len, wants, expected, cut, len);
}

#define NONSENSE "!its reply is not RESP"
#define OVER     "!its reply is over the limit"

static const struct row {
    const char *bytes;
    size_t wants;
    const char *expected;
} rows[] = {
    {"+OK\r\n", 1, "s(OK);"},
    {"+\r\n", 1, "s();"},
    {"-ERR no\r\n", 1, "e(ERR no);"},
    {":0\r\n:-7\r\n", 2, ":0;:-7;"},
    {":9223372036854775807\r\n", 1, ":9223372036854775807;"},
    {":-9223372036854775808\r\n", 1, ":-9223372036854775808;"},
    {"$0\r\n\r\n", 1, "'';"},
    {"$4\r\na\r\nb\r\n", 1, "'a\r\nb';"},
    {"$-1\r\n*-1\r\n", 2, "nil;nil;"},
    {"*0\r\n", 1, "[];"},
    {"*3\r\n:1\r\n$1\r\nx\r\n*2\r\n+a\r\n$-1\r\n", 1, "[:1 'x' [s(a) nil]];"},
    {"*2\r\n*0\r\n*1\r\n*0\r\n+OK\r\n", 2, "[[] [[]]];s(OK);"},
    {"*1\r\n-ERR in it\r\n", 1, "[e(ERR in it)];"},
    {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 1, "[[[[[[[:1]]]]]]];"},

    /* What is complete before the fault is still there. */
    {"+OK\r\nx\r\n", 2, "s(OK);" NONSENSE},
    {"+OK\r\n+OK\r\n", 1, "s(OK);!it sent a reply nobody asked for"},

    /* A number that is not one is no value. */
    {":\r\n", 1, NONSENSE},
    {":-\r\n", 1, NONSENSE},
    {":1x\r\n", 1, NONSENSE},
    {": 1\r\n", 1, NONSENSE},
    {":+1\r\n", 1, NONSENSE},
    {":9223372036854775808\r\n", 1, NONSENSE},
    {"$abc\r\n", 1, NONSENSE},
    {"$-2\r\n", 1, NONSENSE},
    {"$\r\n", 1, NONSENSE},
    {"*x\r\n", 1, NONSENSE},
    {"*-2\r\n", 1, NONSENSE},
    {"$18446744073709551617\r\n", 1, NONSENSE},
    {"*18446744073709551617\r\n", 1, NONSENSE},

    {"+OK\n", 1, NONSENSE},
    {"+a\rb\r\n", 1, NONSENSE},
    {"-ERR\r\r\n", 1, NONSENSE},
    {"\r\n", 1, NONSENSE},
    {"$1\r\nxyz", 1, NONSENSE},
    {"HTTP/1.1 400 Bad Request\r\n", 1, NONSENSE},
    {"%1\r\n", 1, NONSENSE},

    {"$67108865\r\n", 1, OVER},
    {"$9223372036854775807\r\n", 1, OVER},
    {"*16385\r\n", 1, OVER},
    {"*4294967297\r\n", 1, OVER},
    {"*9223372036854775807\r\n", 1, OVER},
    {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", 1, OVER},
};

/* Each row means what it says, however it is cut. */
CASE(replies_are_read_however_they_are_cut)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        read_as(rows[i].bytes, strlen(rows[i].bytes), rows[i].wants, rows[i].expected);
}

/* Many arrays that are each within the limit are not, together. */
CASE(the_elements_of_a_reply_are_counted_together)
{
    static const char four[] = "*16384\r\n", inner[] = "*16384\r\n";
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    const char *fault = NULL;
    size_t arrays = 0;

    assert_true(hapax__redis_reader_want(reader));
    fault = feed(reader, four, strlen(four), 0, 100);
    for (; !fault && arrays < 100; arrays++) {
        fault = feed(reader, inner, strlen(inner), 0, 100);
        for (int i = 0; i < 16384 && !fault; i++)
            fault = feed(reader, ":1\r\n", 4, 0, 4);
    }
    assert_string_equal(fault, "its reply is over the limit");
    assert_int_equal(arrays, 4);
    hapax__redis_reader_close(reader);
}

/* A line without an end is not collected for ever. */
CASE(a_line_has_a_limit)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    const char *fault = feed(reader, "", 0, 0, 1);
    size_t fed = 0;

    assert_true(hapax__redis_reader_want(reader));
    for (; !fault && fed < 1u << 20; fed++)
        fault = feed(reader, "+", 1, 0, 1);
    assert_string_equal(fault, "its reply is over the limit");
    assert_int_equal(fed, HAPAX__REDIS_LINE_MAX + 1);
    hapax__redis_reader_close(reader);
}

/* A large bulk string, which is received into its reply, is the same as one that was copied; what
 * follows it is not lost. */
CASE(a_large_string_is_whole)
{
    static const size_t steps[] = {1000, 16384, 65536, 1u << 20, 5u << 20};
    size_t len = 3u << 20, total;
    char *bytes = malloc(len + 64);

    assert_non_null(bytes);
    total = (size_t)snprintf(bytes, 64, "*2\r\n$%zu\r\n", len);
    for (size_t i = 0; i < len; i++)
        bytes[total++] = (char)(i * 2654435761u >> 13);
    memcpy(bytes + total, "\r\n:5\r\n", 6);
    total += 6;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct hapax__redis_reader *reader = hapax__redis_reader_open();
        struct hapax__resp *reply;

        assert_true(hapax__redis_reader_want(reader));
        assert_null(feed(reader, bytes, total, 0, steps[i]));
        reply = hapax__redis_reader_next(reader);
        assert_non_null(reply);
        assert_int_equal(reply->element[0]->len, len);
        assert_memory_equal(reply->element[0]->str, bytes + total - 6 - len, len);
        assert_int_equal(reply->element[1]->integer, 5);
        assert_int_equal(hapax__redis_reader_wanted(reader), 0);
        hapax__resp_free(reply);
        hapax__redis_reader_close(reader);
    }
    free(bytes);
}

/* The replies of a long pipeline come in order, taken now and then or all at the end. */
CASE(a_long_pipeline_keeps_its_order)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    long long next = 0;

    for (int i = 0; i < 1000; i++) {
        char line[32];
        int len = snprintf(line, sizeof(line), ":%d\r\n", i);

        assert_true(hapax__redis_reader_want(reader));
        assert_null(feed(reader, line, (size_t)len, 0, 100));
        assert_int_equal(hapax__redis_reader_wanted(reader), (size_t)(i + 1 - next));
        for (int j = 0; j < i % 3; j++) {
            struct hapax__resp *reply = hapax__redis_reader_next(reader);

            if (!reply)
                break;
            assert_int_equal(reply->integer, next++);
            hapax__resp_free(reply);
        }
    }
    assert_int_equal(hapax__redis_reader_ready(reader), hapax__redis_reader_wanted(reader));
    hapax__redis_reader_close(reader);
}

/* ---- the peer -------------------------------------------------------------------------- */

#define INPUT_MAX (96u << 10)
#define WANTS     32u

/* Whether both read the same value. */
static bool same(const struct hapax__resp *ours, const redisReply *theirs)
{
    static const int types[] = {
        [HAPAX__RESP_NIL] = REDIS_REPLY_NIL,       [HAPAX__RESP_STATUS] = REDIS_REPLY_STATUS,
        [HAPAX__RESP_ERROR] = REDIS_REPLY_ERROR,   [HAPAX__RESP_INTEGER] = REDIS_REPLY_INTEGER,
        [HAPAX__RESP_STRING] = REDIS_REPLY_STRING, [HAPAX__RESP_ARRAY] = REDIS_REPLY_ARRAY,
    };
    bool text = ours->type == HAPAX__RESP_STATUS || ours->type == HAPAX__RESP_ERROR ||
                ours->type == HAPAX__RESP_STRING;

    if (types[ours->type] != theirs->type || (text && ours->len != theirs->len) ||
        (text && memcmp(ours->str, theirs->str, ours->len) != 0))
        return false;
    if (ours->type == HAPAX__RESP_INTEGER)
        return ours->integer == theirs->integer;
    if (ours->type != HAPAX__RESP_ARRAY)
        return true;
    if (ours->elements != theirs->elements)
        return false;
    for (size_t i = 0; i < ours->elements; i++)
        if (!same(ours->element[i], theirs->element[i]))
            return false;
    return true;
}

/* Whether the line that ends at bytes[end] is a number such as "04" or "-0". */
static bool zero_in_front(const char *bytes, size_t end)
{
    size_t at = end;

    while (at > 0 && bytes[at - 1] != '\n')
        at--;
    at += bytes[at + 1] == '-' ? 2 : 1;
    return bytes[at] == '0' && (bytes[at - 1] == '-' || bytes[at + 1] != '\r');
}

/* Gives both the same bytes one by one. What our reader refuses, the peer is not shown: it has
 * other limits. Until then both have the same replies after the same byte. */
static size_t compare(const char *bytes, size_t len)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    redisReader *peer = redisReaderCreate();
    size_t replies = 0;

    assert_non_null(reader);
    assert_non_null(peer);
    for (size_t i = 0; i < WANTS; i++)
        assert_true(hapax__redis_reader_want(reader));
    for (size_t i = 0; i < len && !feed(reader, bytes + i, 1, 0, 1); i++) {
        struct hapax__resp *ours = hapax__redis_reader_next(reader);
        void *theirs = NULL;

        assert_int_equal(redisReaderFeed(peer, bytes + i, 1), REDIS_OK);
        if (redisReaderGetReply(peer, &theirs) != REDIS_OK) {
            /* It does not wait for the end of a line whose type is none, and takes no "04". */
            assert_true(!ours || zero_in_front(bytes, i));
            hapax__resp_free(ours);
            break;
        }
        assert_int_equal(ours != NULL, theirs != NULL);
        if (!ours)
            continue;
        assert_true(same(ours, theirs));
        hapax__resp_free(ours);
        freeReplyObject(theirs);
        replies++;
    }
    redisReaderFree(peer);
    hapax__redis_reader_close(reader);
    return replies;
}

/* The input itself, and with bytes of RESP put, changed and left out. */
static size_t compare_mutations(const char *bytes, size_t len, unsigned times)
{
    static const char signs[] = "+-:$*\r\n0123456789a";
    static char changed[INPUT_MAX];
    size_t replies = compare(bytes, len);
    unsigned seed = 7;

    for (unsigned n = 0; n < times && len > 0; n++) {
        size_t size = len;

        memcpy(changed, bytes, len);
        for (int k = rand_r(&seed) % 3; k >= 0 && size > 1; k--) {
            size_t at = (size_t)rand_r(&seed) % size;

            switch (rand_r(&seed) % 3) {
            case 0:
                changed[at] = signs[(size_t)rand_r(&seed) % strlen(signs)];
                break;
            case 1:
                /* No memmove(): valgrind takes the fortified one for a memcpy(). */
                size--;
                for (size_t i = at; i < size; i++)
                    changed[i] = changed[i + 1];
                break;
            default:
                for (size_t i = size; i > at; i--)
                    changed[i] = changed[i - 1];
                changed[at] = signs[(size_t)rand_r(&seed) % strlen(signs)];
                size++;
            }
        }
        replies += compare(changed, size);
    }
    return replies;
}

/* Every value that this reader gives, hiredis gives as well, after the same byte. */
CASE(the_peer_reads_the_same)
{
    static char bytes[INPUT_MAX];
    DIR *folder = opendir(corpus);
    struct dirent *entry;
    size_t replies = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        replies += compare_mutations(rows[i].bytes, strlen(rows[i].bytes), mutations);
    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        char path[4096];
        size_t len;
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/%s", corpus, entry->d_name);
        if (entry->d_name[0] == '.' || !(file = fopen(path, "r")))
            continue;
        len = fread(bytes, 1, sizeof(bytes) - 16, file);
        (void)fclose(file);
        if (len > 2) /* the first two say how the fuzzer reads */
            replies += compare_mutations(bytes + 2, len - 2, len < 1000 ? mutations / 4 : 5);
    }
    (void)closedir(folder);
    assert_true(replies > 5 * mutations);
}

int main(int argc, char **argv)
{
    corpus = argc > 1 ? argv[1] : "tests/fuzz/corpus/resp";
    if (argc > 2)
        mutations = (unsigned)strtoul(argv[2], NULL, 10);
    return cases_run(NULL, NULL);
}
