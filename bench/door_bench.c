/* SPDX-License-Identifier: Apache-2.0
 *
 * What the socket's door adds to hapax_execute(): the same handle, called by threads, and through a
 * door by one client with as many operations in hand on one connection, as a process with an SDK
 * has them. Rounds of the two take turns in one run, so that the ratio holds where the machine is
 * shared. First one caller at a time, for the latency; then --callers at once, for the rate.
 *
 *     door_bench [--store URI] [--callers N] [--seconds S]
 *
 * Prints p50 and calls/s of each, the difference of the p50s of one caller, and the ratio of the
 * rates of many.
 */
#include "bench.h"

#include "base/bytes.h"
#include "door/socket/door.h"
#include "door/socket/frame.h"
#include "door/socket/scopes.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CALLERS_MAX 1024
#define ROUNDS      5
#define SAMPLES_MAX (1u << 20)
#define FRAME_MAX   8192u

struct samples {
    int64_t *ns;
    size_t n;
    uint64_t calls;
    int64_t took_ns;
};

struct bench {
    struct hapax *h;
    struct hapax_policy policy;
    char path[64];
    int64_t until_ns;
    struct samples *samples; /* of the round */
    pthread_mutex_t lock; /* of *samples */
};

static atomic_ullong keys;

static void new_key(char out[40])
{
    (void)snprintf(out, 40, "%ld-%llu", (long)getpid(),
                   (unsigned long long)atomic_fetch_add(&keys, 1));
}

static void sample(struct bench *bench, int64_t begun_ns)
{
    struct samples *s = bench->samples;
    int64_t ns = now_ns() - begun_ns;

    pthread_mutex_lock(&bench->lock);
    s->calls++;
    if (s->n < SAMPLES_MAX)
        s->ns[s->n++] = ns;
    pthread_mutex_unlock(&bench->lock);
}

/* ---- hapax_execute() ------------------------------------------------------------------- */

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    (void)arg;
    return hapax_attempt_outcome(attempt, 0, hapax_str(NULL), hapax_str("{\"done\":true}")) ==
                   HAPAX_ERR_NONE
               ? HAPAX_CLASS_FINAL
               : HAPAX_CLASS_NOT_RUN;
}

static void *caller_main(void *arg)
{
    struct bench *bench = arg;

    while (now_ns() < bench->until_ns) {
        struct hapax_request request = {.scope = hapax_str("bench")};
        struct hapax_answer answer;
        char key[40], text[HAPAX_TEXT_MAX];
        int64_t begun_ns = now_ns();

        new_key(key);
        request.key = hapax_str(key);
        if (hapax_execute(bench->h, &bench->policy, &request, handle, NULL, NULL, &answer, text) !=
                HAPAX_ERR_NONE ||
            answer.kind != HAPAX_ANSWER_FRESH)
            die("hapax_execute", text);
        hapax_answer_release(&answer);
        sample(bench, begun_ns);
    }
    return NULL;
}

static void execute(struct bench *bench, unsigned callers)
{
    static pthread_t threads[CALLERS_MAX];

    for (unsigned i = 0; i < callers; i++)
        if (pthread_create(&threads[i], NULL, caller_main, bench) != 0)
            die("cannot start a thread", NULL);
    for (unsigned i = 0; i < callers; i++)
        pthread_join(threads[i], NULL);
}

/* ---- the door ---------------------------------------------------------------------------- */

struct wire {
    int fd;
    uint8_t *in;
    size_t len, size;
    uint8_t *out;
    size_t out_len;
};

static void put(struct wire *w, enum hapax__door_kind kind, uint32_t op, const char *meta,
                const char *body)
{
    hapax__door_frame_head(w->out + w->out_len, kind, op, strlen(meta), strlen(body));
    w->out_len += HAPAX__DOOR_HEAD;
    memcpy(w->out + w->out_len, meta, strlen(meta));
    w->out_len += strlen(meta);
    memcpy(w->out + w->out_len, body, strlen(body));
    w->out_len += strlen(body);
}

static void flush(struct wire *w)
{
    size_t at = 0;

    while (at < w->out_len) {
        ssize_t sent = send(w->fd, w->out + at, w->out_len - at, MSG_NOSIGNAL);

        if (sent <= 0)
            die("send", strerror(errno));
        at += (size_t)sent;
    }
    w->out_len = 0;
}

static void connect_to(struct wire *w, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(w, 0, sizeof(*w));
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    w->size = w->out_len = 0;
    w->size = (size_t)1 << 20;
    w->in = malloc(w->size);
    w->out = malloc(CALLERS_MAX * 2 * FRAME_MAX);
    if (!w->in || !w->out ||
        connect(w->fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        die("connect", strerror(errno));
    put(w, HAPAX__DOOR_HELLO, 0, "{\"hapax\":1}", "");
    flush(w);
}

static void begin(struct wire *w, uint32_t op)
{
    char key[40], meta[160];

    new_key(key);
    (void)snprintf(meta, sizeof(meta), "{\"scope\":\"bench\",\"key\":\"%s\",\"nonce\":\"%032llx\"}",
                   key, (unsigned long long)random_number(&keys));
    put(w, HAPAX__DOOR_BEGIN, op, meta, "");
}

/* Takes the frames that came. Returns how many operations are in hand. */
static unsigned take(struct wire *w, struct bench *bench, int64_t *begun_ns, unsigned in_hand)
{
    struct hapax__door_frame frame;
    size_t at = 0, size;
    const char *why = "";
    int64_t taken;

    while ((taken = hapax__door_frame_read(&frame, (struct hapax_span){w->in + at, w->len - at},
                                           HAPAX__DOOR_FRAME_MAX, &size, &why)) > 0) {
        at += (size_t)taken;
        if (frame.kind == HAPAX__DOOR_RUN) {
            put(w, HAPAX__DOOR_END, frame.op, "{\"class\":\"final\"}", "{\"done\":true}");
        } else if (frame.kind == HAPAX__DOOR_ANSWER) {
            sample(bench, begun_ns[frame.op]);
            in_hand--;
            if (now_ns() < bench->until_ns) {
                begun_ns[frame.op] = now_ns();
                begin(w, frame.op);
                in_hand++;
            }
        } else if (frame.kind != HAPAX__DOOR_WELCOME) {
            die("a frame of another kind", (const char *)frame.meta.ptr);
        }
    }
    if (taken < 0)
        die("no frame", why);
    memmove(w->in, w->in + at, w->len - at);
    w->len -= at;
    return in_hand;
}

static void by_door(struct bench *bench, unsigned callers)
{
    static int64_t begun_ns[CALLERS_MAX + 1];
    unsigned in_hand = callers;
    struct wire w;

    connect_to(&w, bench->path);
    for (uint32_t op = 1; op <= callers; op++) {
        begun_ns[op] = now_ns();
        begin(&w, op);
    }
    while (in_hand > 0) {
        ssize_t got;

        flush(&w);
        got = recv(w.fd, w.in + w.len, w.size - w.len, 0);
        if (got <= 0)
            die("the door has closed", NULL);
        w.len += (size_t)got;
        in_hand = take(&w, bench, begun_ns, in_hand);
    }
    close(w.fd);
    free(w.in);
    free(w.out);
}

/* ---- rounds ------------------------------------------------------------------------------ */

static void round_of(struct bench *bench, struct samples *samples, unsigned callers, double seconds,
                     void (*play)(struct bench *bench, unsigned callers))
{
    int64_t begun_ns = now_ns();

    bench->samples = samples;
    bench->until_ns = begun_ns + (int64_t)(seconds * 1e9);
    play(bench, callers);
    samples->took_ns += now_ns() - begun_ns;
}

static double p50_us(struct samples *s)
{
    qsort(s->ns, s->n, sizeof(*s->ns), by_size);
    return s->n > 0 ? (double)s->ns[s->n / 2] / 1000 : 0;
}

static double rate(const struct samples *s)
{
    return (double)s->calls * 1e9 / (double)s->took_ns;
}

static void compare(struct bench *bench, unsigned callers, double seconds)
{
    struct samples samples[2] = {{.n = 0}, {.n = 0}};
    double p50[2];

    for (int i = 0; i < 2; i++) {
        samples[i].ns = malloc(SAMPLES_MAX * sizeof(int64_t));
        if (!samples[i].ns)
            die("out of memory", NULL);
    }
    for (int i = 0; i < ROUNDS; i++) {
        round_of(bench, &samples[0], callers, seconds / (2 * ROUNDS), execute);
        round_of(bench, &samples[1], callers, seconds / (2 * ROUNDS), by_door);
    }
    for (int i = 0; i < 2; i++)
        p50[i] = p50_us(&samples[i]);
    printf("%4u callers: execute %.0f calls/s, p50 %.1f us; door %.0f calls/s, p50 %.1f us; "
           "p50 +%.1f us, rate x %.2f\n",
           callers, rate(&samples[0]), p50[0], rate(&samples[1]), p50[1], p50[1] - p50[0],
           rate(&samples[1]) / rate(&samples[0]));
    free(samples[0].ns);
    free(samples[1].ns);
}

static unsigned number_of(const char *text, unsigned long max)
{
    char *end;
    unsigned long number;

    errno = 0;
    number = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number > max || number == 0)
        die("a number is out of bounds", NULL);
    return (unsigned)number;
}

int main(int argc, char **argv)
{
    static struct hapax__door_stats stats;
    struct hapax__scopes scopes = {.n = 0};
    struct bench bench = {.samples = NULL};
    struct hapax__door_options how = {.scopes = &scopes, .stats = &stats};
    const struct hapax_options options = {.calls_max = 65536};
    struct hapax__door *door;
    unsigned callers = 64, seconds = 10;
    const char *uri = "memory:";
    char text[HAPAX_TEXT_MAX];

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            die("usage: door_bench [--store URI] [--callers N] [--seconds S]", NULL);
        if (strcmp(argv[i], "--store") == 0)
            uri = argv[i + 1];
        else if (strcmp(argv[i], "--callers") == 0)
            callers = number_of(argv[i + 1], CALLERS_MAX);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = number_of(argv[i + 1], 600);
        else
            die("no such option", argv[i]);
    }
#ifdef HAPAX_BENCH_ROCKSDB
    hapax_rocksdb_use();
#endif
    pthread_mutex_init(&bench.lock, NULL);
    hapax_policy_init(&bench.policy);
    scopes.policy = bench.policy;
    if (hapax_open(&bench.h, uri, &options, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    (void)snprintf(bench.path, sizeof(bench.path), "/tmp/hapax-door-bench-%ld.sock",
                   (long)getpid());
    how.h = bench.h;
    how.path = bench.path;
    if (hapax__door_open(&door, &how, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    compare(&bench, 1, seconds / 2.0);
    compare(&bench, callers, seconds / 2.0);
    if (hapax__door_close(door, 1000) != 0)
        die("operations are left in hand", NULL);
    return hapax_close(bench.h, bench.policy.save_wait_ms) == 0 ? 0 : 1;
}
