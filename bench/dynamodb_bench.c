/* SPDX-License-Identifier: Apache-2.0
 *
 * What the DynamoDB store costs beside the HTTP calls themselves. Each operation is claimed and
 * then completed with 300 bytes, under an id of its own. Depths of 1, 16 and 64 take turns:
 *
 *     store     by hapax_store_run()
 *     bare      the same two PutItem with the same bytes, prepared before, by curl_multi on as many
 *               kept connections. CURLOPT_AWS_SIGV4 signs them: AWS takes only signed ones
 *     unsigned  the same without a signature, which these test servers accept
 *
 * Beside each rate stands the CPU time that this process spent. The server is the bottleneck here;
 * AWS has none. Exits 1 if the store does less than 0.9 of bare, over all depths.
 *
 *     dynamodb_bench URI [--seconds S]       (with.py dynamodb build/bench/dynamodb_bench '{uri}')
 */
#include "bench.h"

#include "core/record.h"
#include "store/dynamodb/dynamodb.h"

#include <curl/curl.h>
#include <math.h>
#include <openssl/evp.h>
#include <sys/resource.h>

#define DEPTH_MAX    64u
#define BODY_SIZE    300u
#define TURN_US      INT64_C(200000)
#define TURNS_MAX    64u
#define RATIO_MIN    0.9
#define LEASE_MS     30000
#define RETENTION_MS 600000
#define ID_TEXT      44u /* base64 of 32 bytes */

/* A request whose id is put in for each call. */
struct template
{
    struct hapax__json_out out;
    size_t id_at;
};

struct line { /* of curl's: one at a time */
    CURL *easy;
    char *body;
};

struct row {
    const char *name;
    void (*cycle)(size_t depth);
    uint64_t cycles;
    int64_t us;
    double cpu_s;
};

static struct hapax_store *store;
static struct hapax__ddb *ddb;
static CURLM *multi;
static struct line signed_lines[DEPTH_MAX], unsigned_lines[DEPTH_MAX];
static struct template claim_call, complete_call;
static struct hapax_id ids[DEPTH_MAX];
static uint8_t body[BODY_SIZE];
static atomic_ullong counter;

/* ---- the rows ---------------------------------------------------------------------- */

static void run(struct hapax_op *ops, size_t depth, const char *what)
{
    if (hapax_store_run(store, ops, depth) != HAPAX_ERR_NONE)
        die(what, hapax_store_text(store));
}

static void store_cycle(size_t depth)
{
    static struct hapax_op ops[DEPTH_MAX];

    for (size_t i = 0; i < depth; i++)
        ops[i] = (struct hapax_op){.kind = HAPAX_OP_CLAIM,
                                   .id = ids[i],
                                   .token = {{1}},
                                   .scope = hapax_str("bench"),
                                   .lease_ms = LEASE_MS,
                                   .retention_ms = RETENTION_MS,
                                   .on_expired = HAPAX_EXPIRED_RERUN};
    run(ops, depth, "claim");
    for (size_t i = 0; i < depth; i++) {
        if (ops[i].verdict != HAPAX_CLAIMED)
            die("claim", hapax_verdict_name(ops[i].verdict));
        ops[i] = (struct hapax_op){.kind = HAPAX_OP_COMPLETE, .id = ids[i], .token = {{1}}};
        ops[i].outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, BODY_SIZE}};
    }
    run(ops, depth, "complete");
}

static void send_one(const struct template *call, struct line *line, const struct hapax_id *id)
{
    char text[ID_TEXT + 1];

    (void)EVP_EncodeBlock((unsigned char *)text, id->bytes, sizeof(id->bytes));
    memcpy(line->body, call->out.bytes, call->out.len);
    memcpy(line->body + call->id_at, text, ID_TEXT);
    curl_easy_setopt(line->easy, CURLOPT_POSTFIELDS, line->body);
    curl_easy_setopt(line->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->out.len);
    curl_multi_add_handle(multi, line->easy);
}

static size_t reap(void)
{
    CURLMsg *message;
    size_t ended = 0;
    int left;
    long status;

    while ((message = curl_multi_info_read(multi, &left))) {
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        if (message->data.result != CURLE_OK || status != 200)
            die("bare", message->data.result != CURLE_OK ? curl_easy_strerror(message->data.result)
                                                         : "a call was refused");
        curl_multi_remove_handle(multi, message->easy_handle);
        ended++;
    }
    return ended;
}

static void send_all(const struct template *call, struct line *lines, size_t depth)
{
    size_t ended = 0;
    int running;

    for (size_t i = 0; i < depth; i++)
        send_one(call, &lines[i], &ids[i]);
    do {
        curl_multi_perform(multi, &running);
        ended += reap();
        if (ended < depth)
            curl_multi_poll(multi, NULL, 0, 1000, NULL);
    } while (ended < depth);
}

static void bare_cycle(size_t depth)
{
    send_all(&claim_call, signed_lines, depth);
    send_all(&complete_call, signed_lines, depth);
}

static void unsigned_cycle(size_t depth)
{
    send_all(&claim_call, unsigned_lines, depth);
    send_all(&complete_call, unsigned_lines, depth);
}

/* ---- preparing --------------------------------------------------------------------- */

static void prepare(struct template *call, bool completed)
{
    static const uint8_t v[HAPAX__DDB_V_LEN] = {7};
    static uint8_t bytes[1024];
    struct hapax_record record = {.state = completed ? HAPAX_STATE_COMPLETED : HAPAX_STATE_STARTED,
                                  .scope = hapax_str("bench"),
                                  .attempt = 1,
                                  .fence = 1700000000000000,
                                  .created_us = 1700000000000000,
                                  .updated_us = 1700000000000000,
                                  .lease_until_us = completed ? 0 : 1700000030000000,
                                  .expires_us = 4000000000000000,
                                  .retention_ms = RETENTION_MS};
    struct hapax__ddb_item item = {.has_v = true};
    char text[ID_TEXT + 1];
    const char *at;

    if (completed)
        record.outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, BODY_SIZE}};
    memset(record.id.bytes, 0xee, sizeof(record.id.bytes));
    memcpy(item.v, v, sizeof(v));
    item.r = (struct hapax_span){bytes, hapax__record_size(&record)};
    hapax__record_encode(bytes, &record);
    hapax__ddb_ask_put(&call->out, ddb->uri.table, &record, &item, completed ? v : NULL);
    (void)EVP_EncodeBlock((unsigned char *)text, record.id.bytes, sizeof(record.id.bytes));
    at = memmem(call->out.bytes, call->out.len, text, ID_TEXT);
    if (call->out.failed || !at)
        die("prepare", "out of memory");
    call->id_at = (size_t)(at - call->out.bytes);
}

static size_t drop_reply(char *at, size_t one, size_t n, void *arg)
{
    (void)at;
    (void)arg;
    return one * n;
}

static struct curl_slist *headers_of(const char *more)
{
    static const char *const names[] = {"X-Amz-Target: DynamoDB_20120810.PutItem",
                                        "Content-Type: application/x-amz-json-1.0", "Expect:"};
    struct curl_slist *headers = more ? curl_slist_append(NULL, more) : NULL;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        headers = curl_slist_append(headers, names[i]);
    return headers;
}

static void connect_line(struct line *line, struct curl_slist *headers)
{
    line->easy = curl_easy_init();
    line->body = malloc(claim_call.out.len + complete_call.out.len);
    if (!line->easy || !line->body)
        die("connect", "out of memory");
    curl_easy_setopt(line->easy, CURLOPT_URL, ddb->uri.endpoint);
    curl_easy_setopt(line->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(line->easy, CURLOPT_WRITEFUNCTION, drop_reply);
    curl_easy_setopt(line->easy, CURLOPT_TCP_NODELAY, 1L);
}

static void connect_bare(void)
{
    struct curl_slist *plain = headers_of(NULL), *faked;
    char authorization[256], provider[128];

    snprintf(authorization, sizeof(authorization),
             "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261120/%s/dynamodb/"
             "aws4_request, SignedHeaders=host;x-amz-target, Signature=00",
             ddb->uri.region);
    faked = headers_of(authorization);
    faked = curl_slist_append(faked, "X-Amz-Date: 20261120T230000Z");
    snprintf(provider, sizeof(provider), "aws:amz:%s:dynamodb", ddb->uri.region);
    multi = curl_multi_init();
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)DEPTH_MAX);
    for (size_t i = 0; i < DEPTH_MAX; i++) {
        connect_line(&signed_lines[i], plain);
        curl_easy_setopt(signed_lines[i].easy, CURLOPT_AWS_SIGV4, provider);
        curl_easy_setopt(signed_lines[i].easy, CURLOPT_USERPWD, "AKIDEXAMPLE:not-a-secret");
        connect_line(&unsigned_lines[i], faked);
    }
}

/* ---- the comparison ---------------------------------------------------------------- */

static double cpu_s(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Returns its cycles a second. */
static double turn(struct row *row, size_t depth)
{
    uint64_t before = row->cycles;
    double before_s = cpu_s();
    int64_t begin_us = now_us(), end_us;

    do {
        draw(&counter, ids, depth * sizeof(ids[0]));
        row->cycle(depth);
        row->cycles += depth;
        end_us = now_us();
    } while (end_us - begin_us < TURN_US);
    row->us += end_us - begin_us;
    row->cpu_s += cpu_s() - before_s;
    return (double)(row->cycles - before) * 1e6 / (double)(end_us - begin_us);
}

static double per_second(const struct row *row)
{
    return (double)row->cycles * 1e6 / (double)row->us;
}

/* store/bare at one depth: the median over the turns, since other work on the machine varies. */
static double compare(size_t depth, double seconds)
{
    struct row rows[] = {{"store", store_cycle, 0, 0, 0},
                         {"bare", bare_cycle, 0, 0, 0},
                         {"unsigned", unsigned_cycle, 0, 0, 0}};
    size_t count = sizeof(rows) / sizeof(rows[0]), turns = 0;
    int64_t end_us = now_us() + (int64_t)(seconds * 1e6);
    double ratios[TURNS_MAX];

    do {
        double rates[3];

        for (size_t i = 0; i < count; i++)
            rates[i] = turn(&rows[i], depth);
        ratios[turns++] = rates[0] / rates[1];
    } while (now_us() < end_us && turns < TURNS_MAX);
    for (size_t i = 0; i < count; i++)
        printf("%-8s at depth %2zu  %7.0f cycles/s   client %6.1f us/cycle\n", rows[i].name, depth,
               per_second(&rows[i]), rows[i].cpu_s * 1e6 / (double)rows[i].cycles);
    qsort(ratios, turns, sizeof(ratios[0]), by_value);
    printf("store/bare at depth %zu: %.2f, the median of %zu turns\n", depth, ratios[turns / 2],
           turns);
    return ratios[turns / 2];
}

int main(int argc, char **argv)
{
    static const size_t depths[] = {1, 16, 64};
    double seconds = argc == 4 && strcmp(argv[2], "--seconds") == 0 ? strtod(argv[3], NULL) : 18;
    double product = 1, ratio;
    char text[HAPAX_TEXT_MAX], uri[512];

    if (argc < 2)
        die("usage", "dynamodb_bench URI [--seconds S]");
    counter = (uint64_t)now_us();
    draw(&counter, body, sizeof(body));
    snprintf(uri, sizeof(uri), "%s&connections=%u&timeout=30s", argv[1], DEPTH_MAX);
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        die("open", text);
    ddb = (struct hapax__ddb *)store;
    prepare(&claim_call, false);
    prepare(&complete_call, true);
    connect_bare();
    for (int64_t warm_us = now_us() + 3000000;
         now_us() < warm_us;) { /* the server compiles itself meanwhile */
        draw(&counter, ids, sizeof(ids));
        bare_cycle(DEPTH_MAX);
        draw(&counter, ids, sizeof(ids));
        store_cycle(DEPTH_MAX);
    }
    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        ratio = compare(depths[i], seconds / 3);
        product *= ratio;
    }
    ratio = cbrt(product);
    printf("store/bare %.2f (at least %.2f)\n", ratio, RATIO_MIN);
    hapax_store_close(store);
    return ratio < RATIO_MIN;
}
