/* SPDX-License-Identifier: Apache-2.0
 *
 * What the message door costs: the messages a second that hapax_consumer_run() takes from a full
 * queue, with a handler that does nothing. It is compared with
 *
 *     bare    the same loop without Hapax: the same source, loop, hands, handler and
 *             acknowledgements. No key is read, nothing is hashed, nothing is claimed. This program
 *             is linked so that hands call __wrap_hapax__message_ask(), __wrap_hapax__call_begin()
 *             and so on, which leave Hapax out when told so. The ratio is hapax / bare.
 *     source  the source alone: one thread takes and acknowledges, and nothing runs. This is the
 *             most that the broker gives.
 *
 * A line has the rate, the processor time of this process for a message, and thousands of its
 * instructions, those of the kernel included.
 *
 * They take turns, each on a queue of its own that was filled before. The median of the rounds'
 * ratios is judged: exit 1 if it is under the bound by more than the tolerance. The handler is a C
 * function. With --handler http it is that of `hapax consume`, which POSTs to a server in a child
 * process that answers 204. Rejected as the baseline: no_key=run, since it goes through the pulse
 * as well; a consumer of another make, since then loops are compared, and not what Hapax adds.
 *
 *     consume_bench --broker amqp://…|kafka://HOST:PORT|sqs://REGION?endpoint=… --store URI
 *                   [--messages N] [--rounds N] [--hands N] [--in-hand N] [--handler c|http]
 *                   [--type classic|quorum] [--bound R] [--tolerance PCT]
 */
#include "bench.h"

#include "base/clock.h"
#include "broker/sink.h"
#include "door/call.h"
#include "door/consume/ask.h"
#include "door/consume/post.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS_MAX 100
#define LETTERS    256 /* in hand while a queue is filled */
#define BODY_BYTES 200
#define URI_MAX    512
#define END_S      120 /* by which a run is over */

enum kind { SOURCE, BARE, HAPAX, KINDS };
static const char *const kind_names[KINDS] = {"source", "bare", "hapax"};

struct letter {
    struct hapax__letter letter;
    struct hapax_message_header header;
    char id[64];
    char key[80];
    bool in_hand;
};

struct bench {
    const char *broker, *store, *type;
    unsigned messages, rounds, hands, in_hand, tolerance;
    double bound;
    bool http;
    struct hapax *h;
    struct hapax__post *post;
    char where[URI_MAX]; /* of the queue of a run */
};

struct consuming {
    const struct bench *bench;
    struct hapax_consumer consumer;
    struct hapax_consumer_stats stats;
    atomic_bool ended;
};

struct figure {
    double rate;
    double cpu_us; /* of this process, for a message */
    double kilo; /* thousands of its instructions, the kernel's included; 0: not counted */
};

static atomic_bool without; /* Hapax */
static bool with_post;
static int counter; /* of instructions of this process, without the service; 0: none */
static struct hapax_policy keyless;
static atomic_llong first_us; /* when the first message was at its handler; 0: none was */

/* ---- what hands call --------------------------------------------------------------- */

enum hapax_error __real_hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                           const struct hapax_policy *policy,
                                           const struct hapax__delivered *delivered);
enum hapax_error __wrap_hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                           const struct hapax_policy *policy,
                                           const struct hapax__delivered *delivered);
struct hapax__call *__real_hapax__call_new(struct hapax *h, const struct hapax_policy *policy,
                                           const struct hapax_request *request,
                                           const struct hapax_attempt *outer, bool reconciles,
                                           char text[HAPAX_TEXT_MAX]);
struct hapax__call *__wrap_hapax__call_new(struct hapax *h, const struct hapax_policy *policy,
                                           const struct hapax_request *request,
                                           const struct hapax_attempt *outer, bool reconciles,
                                           char text[HAPAX_TEXT_MAX]);
enum hapax_error __real_hapax__call_begin(struct hapax__call *call, char text[HAPAX_TEXT_MAX]);
enum hapax_error __wrap_hapax__call_begin(struct hapax__call *call, char text[HAPAX_TEXT_MAX]);
void __real_hapax__call_ended(struct hapax__call *call, enum hapax_class cls);
void __wrap_hapax__call_ended(struct hapax__call *call, enum hapax_class cls);
enum hapax_error __real_hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer,
                                          char text[HAPAX_TEXT_MAX]);
enum hapax_error __wrap_hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer,
                                          char text[HAPAX_TEXT_MAX]);

enum hapax_error __wrap_hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                           const struct hapax_policy *policy,
                                           const struct hapax__delivered *delivered)
{
    long long none = 0;

    if (atomic_load_explicit(&first_us, memory_order_relaxed) == 0)
        (void)atomic_compare_exchange_strong(&first_us, &none, now_us());
    if (!atomic_load_explicit(&without, memory_order_relaxed))
        return __real_hapax__message_ask(out, ask, policy, delivered);
    out->refused = 0;
    /* Hands hash the key, to find duplicates among the messages in hand. */
    out->request = (struct hapax_request){.key = delivered->message.body};
    return HAPAX_ERR_NONE;
}

static bool leaves_out(void)
{
    return atomic_load_explicit(&without, memory_order_relaxed) && !with_post;
}

/* A handler over HTTP needs an attempt. It gets one without a key, so no store is asked. */
struct hapax__call *__wrap_hapax__call_new(struct hapax *h, const struct hapax_policy *policy,
                                           const struct hapax_request *request,
                                           const struct hapax_attempt *outer, bool reconciles,
                                           char text[HAPAX_TEXT_MAX])
{
    static const struct hapax_request unkeyed = {.scope = {NULL, 0}};
    struct hapax__call *call;

    if (!atomic_load_explicit(&without, memory_order_relaxed))
        return __real_hapax__call_new(h, policy, request, outer, reconciles, text);
    if (with_post)
        return __real_hapax__call_new(h, &keyless, &unkeyed, outer, reconciles, text);
    call = malloc(sizeof(*call));
    if (!call)
        die("out of memory", NULL);
    return call;
}

/* Tells the call of its state at once. */
static void tell(struct hapax__call *call, enum hapax__flow_do state)
{
    call->state = state;
    STAILQ_NEXT(call, next) = NULL;
    call->told(call);
}

enum hapax_error __wrap_hapax__call_begin(struct hapax__call *call, char text[HAPAX_TEXT_MAX])
{
    if (!leaves_out())
        return __real_hapax__call_begin(call, text);
    tell(call, HAPAX__FLOW_RUN);
    return HAPAX_ERR_NONE;
}

void __wrap_hapax__call_ended(struct hapax__call *call, enum hapax_class cls)
{
    if (!leaves_out()) {
        __real_hapax__call_ended(call, cls);
        return;
    }
    call->answer = (struct hapax_answer){
        .kind = HAPAX_ANSWER_FRESH, .cls = cls, .recorded = true, .retry_after_ms = -1};
    tell(call, HAPAX__FLOW_ANSWER);
}

enum hapax_error __wrap_hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer,
                                          char text[HAPAX_TEXT_MAX])
{
    if (!leaves_out())
        return __real_hapax__call_leave(call, answer, text);
    *answer = call->answer;
    free(call);
    return HAPAX_ERR_NONE;
}

static enum hapax_class do_nothing(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                   void *arg)
{
    (void)attempt;
    (void)delivery;
    (void)arg;
    return HAPAX_CLASS_FINAL;
}

/* ---- a service that does nothing --------------------------------------------------- */

struct call {
    int fd;
    size_t len;
    char bytes[8192];
};

/* The length of the first request; 0: it has not come whole. */
static size_t request_in(struct call *call)
{
    char *end, *length;
    size_t head;

    call->bytes[call->len] = '\0';
    end = strstr(call->bytes, "\r\n\r\n");
    if (!end)
        return 0;
    head = (size_t)(end - call->bytes) + 4;
    length = strcasestr(call->bytes, "\r\ncontent-length:");
    if (length && length < end)
        head += strtoul(length + 17, NULL, 10);
    return head <= call->len ? head : 0;
}

static void answer_calls(struct call *call)
{
    static const char answer[] = "HTTP/1.1 204 No Content\r\n\r\n";
    ssize_t got = read(call->fd, call->bytes + call->len, sizeof(call->bytes) - 1 - call->len);
    size_t n;

    if (got <= 0) {
        close(call->fd);
        free(call);
        return;
    }
    call->len += (size_t)got;
    while ((n = request_in(call)) > 0) {
        memmove(call->bytes, call->bytes + n, call->len - n);
        call->len -= n;
        if (write(call->fd, answer, sizeof(answer) - 1) != (ssize_t)sizeof(answer) - 1)
            die("the service cannot answer", NULL);
    }
}

static _Noreturn void serve(int listener)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[64];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) != 0)
        die("the service cannot start", NULL);
    for (;;) {
        int n = epoll_wait(set, events, 64, -1);

        for (int i = 0; i < n; i++) {
            struct call *call = events[i].data.ptr;

            if (call) {
                answer_calls(call);
                continue;
            }
            call = calloc(1, sizeof(*call));
            if (!call || (call->fd = accept(listener, NULL, NULL)) < 0)
                die("the service cannot accept", NULL);
            event = (struct epoll_event){.events = EPOLLIN, .data.ptr = call};
            (void)epoll_ctl(set, EPOLL_CTL_ADD, call->fd, &event);
        }
    }
}

/* Starts the service in a child, before there are threads. */
static void open_post(struct bench *bench)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    char url[64], text[HAPAX_TEXT_MAX];
    struct hapax__post_options how = {
        .to = url, .timeout_ms = 60000, .body_max = 65536, .concurrency = bench->hands};

    if (bind(listener, (struct sockaddr *)&at, len) != 0 || listen(listener, 1024) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &len) != 0)
        die("the service cannot listen", strerror(errno));
    if (fork() == 0)
        serve(listener);
    close(listener);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(at.sin_port));
    if (hapax__post_open(&bench->post, &how, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    with_post = true;
    hapax_policy_init(&keyless);
    keyless.key = HAPAX_KEY_OPTIONAL;
}

/* ---- filling a queue --------------------------------------------------------------- */

static void pump(struct hapax__sink *sink)
{
    struct pollfd fds[HAPAX__POLLFDS_MAX];
    int64_t due_us = hapax__monotonic_us() + 100000;
    size_t n = sink->type->watch(sink, fds, &due_us);
    int64_t left_us = due_us - hapax__monotonic_us();

    (void)poll(fds, (nfds_t)n,
               left_us > 100000 ? 100
               : left_us > 0    ? (int)(left_us / 1000) + 1
                                : 0);
    sink->type->pump(sink);
}

static void write_letter(struct letter *letter, const char *name, unsigned number)
{
    static uint8_t body[BODY_BYTES];

    memset(body, 'x', sizeof(body)); /* SQS takes text alone */
    (void)snprintf(letter->id, sizeof(letter->id), "%ld-%.24s-%u", (long)getpid(), name, number);
    (void)snprintf(letter->key, sizeof(letter->key), "\"%s\"", letter->id);
    letter->header =
        (struct hapax_message_header){hapax_str("idempotency-key"), hapax_str(letter->key)};
    letter->letter = (struct hapax__letter){.to = name,
                                            .body = {body, sizeof(body)},
                                            .id = hapax_str(letter->id),
                                            .key = hapax_str(letter->id),
                                            .own = &letter->header,
                                            .own_count = 1,
                                            .tag = letter};
    letter->in_hand = true;
}

/* Makes a queue or topic and fills it; each message has a key of its own. */
static void fill(const struct bench *bench, const char *name)
{
    static struct letter letters[LETTERS];
    bool amqp = strncmp(bench->broker, "amqp", 4) == 0;
    char uri[URI_MAX], text[HAPAX_TEXT_MAX];
    unsigned sent = 0, confirmed = 0;
    struct hapax__sink *sink;
    enum hapax__sent result;
    void *tag;

    (void)snprintf(uri, sizeof(uri), amqp ? "%s?type=%s" : "%s", bench->broker, bench->type);
    if (hapax__sink_type_of(uri)->open(&sink, uri, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    sink->type->make(sink, name);
    while (confirmed < bench->messages) {
        for (unsigned i = 0; i < LETTERS && sent < bench->messages; i++) {
            if (letters[i].in_hand)
                continue;
            write_letter(&letters[i], name, sent);
            letters[i].in_hand = sink->type->send(sink, &letters[i].letter);
            sent += letters[i].in_hand;
        }
        pump(sink);
        while ((result = sink->type->reap(sink, &tag)) != HAPAX__SENT_NOTHING) {
            ((struct letter *)tag)->in_hand = false;
            if (result != HAPAX__SENT_OK)
                die("a letter was not published", sink->why);
            confirmed++;
        }
    }
    sink->type->close(sink);
}

static void name_source(struct bench *bench, const char *name)
{
    size_t len = strcspn(bench->broker, "?");

    if (strncmp(bench->broker, "sqs:", 4) == 0)
        (void)snprintf(bench->where, sizeof(bench->where), "%.*s/%s%s", (int)len, bench->broker,
                       name, bench->broker + len);
    else
        (void)snprintf(bench->where, sizeof(bench->where),
                       strncmp(bench->broker, "kafka:", 6) == 0 ? "%s/%s?group=%s" : "%s?queue=%s",
                       bench->broker, name, name);
}

/* ---- runs -------------------------------------------------------------------------- */

static void log_line(void *arg, const char *line)
{
    (void)arg;
    if (getenv("HAPAX_BENCH_LOG"))
        fprintf(stderr, "# %s\n", line);
}

static void begin_consumer(struct hapax_consumer *consumer, const struct bench *bench)
{
    hapax_consumer_init(consumer);
    consumer->from = bench->where;
    consumer->scope = "bench";
    consumer->concurrency = bench->hands;
    consumer->in_hand_max = bench->in_hand;
    consumer->log = log_line;
}

static int64_t cpu_us(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void *consume(void *arg)
{
    struct consuming *consuming = arg;
    const struct bench *bench = consuming->bench;
    char text[HAPAX_TEXT_MAX];

    if (hapax_consumer_run(bench->h, &consuming->consumer,
                           bench->http ? hapax__post_handler : do_nothing, NULL, bench->post,
                           &consuming->stats, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    atomic_store(&consuming->ended, true);
    return NULL;
}

/* Runs until all is acknowledged. */
static struct figure run_loop(const struct bench *bench)
{
    static struct consuming consuming;
    struct hapax_consumer_stats seen;
    struct timespec millisecond = {0, 1000000};
    int stop = eventfd(0, EFD_CLOEXEC);
    int64_t begun_us = now_us(), cpu = cpu_us(), kilo = counted(counter), ended_us;
    pthread_t thread;

    memset(&consuming, 0, sizeof(consuming));
    atomic_store(&first_us, 0);
    consuming.bench = bench;
    begin_consumer(&consuming.consumer, bench);
    consuming.consumer.stop_fd = stop;
    if (pthread_create(&thread, NULL, consume, &consuming) != 0)
        die("cannot start a thread", NULL);
    do {
        nanosleep(&millisecond, NULL);
        hapax_consumer_read(&seen, &consuming.stats);
        ended_us = now_us();
        if (ended_us - begun_us > END_S * INT64_C(1000000))
            die("a run did not end", NULL);
    } while (seen.acknowledged < bench->messages);
    cpu = cpu_us() - cpu;
    kilo = (counted(counter) - kilo) / 1000;
    if (eventfd_write(stop, 1) != 0)
        die("cannot stop", NULL);
    pthread_join(thread, NULL);
    close(stop);
    if (seen.acknowledged != bench->messages || seen.run != bench->messages ||
        seen.retried + seen.dead_lettered + seen.parked > 0)
        die("not every message was run once", NULL);
    return (struct figure){bench->messages * 1e6 / (double)(ended_us - atomic_load(&first_us)),
                           (double)cpu / bench->messages, (double)kilo / bench->messages};
}

/* The source, and nothing behind it. */
static struct figure run_source(const struct bench *bench)
{
    struct hapax_consumer consumer;
    struct hapax__source *source;
    struct hapax__delivered *delivered;
    char text[HAPAX_TEXT_MAX];
    unsigned taken = 0;
    int64_t begun_us = 0, cpu = cpu_us(), kilo = counted(counter);

    begin_consumer(&consumer, bench);
    if (hapax__source_type_of(bench->where)->open(&source, &consumer, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    while (taken < bench->messages) {
        struct pollfd fds[HAPAX__POLLFDS_MAX];
        int64_t due_us = INT64_MAX;
        size_t n = source->type->watch(source, fds, &due_us);

        (void)poll(fds, (nfds_t)n, due_us <= now_us() ? 0 : 10);
        if (source->type->pump(source, bench->in_hand) != HAPAX_ERR_NONE)
            die(source->text, NULL);
        while ((delivered = source->type->take(source)) != NULL) {
            if (taken++ == 0)
                begun_us = now_us();
            source->type->release(source, delivered, HAPAX__RELEASE_ACK);
        }
    }
    cpu = cpu_us() - cpu;
    kilo = (counted(counter) - kilo) / 1000;
    begun_us = now_us() - begun_us;
    source->type->close(source, 5000);
    return (struct figure){taken * 1e6 / (double)begun_us, (double)cpu / taken,
                           (double)kilo / taken};
}

static struct figure run(struct bench *bench, enum kind kind, unsigned round)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "bench-%ld-%s-%u", (long)getpid(), kind_names[kind], round);
    fill(bench, name);
    name_source(bench, name);
    atomic_store(&without, kind != HAPAX);
    return kind == SOURCE ? run_source(bench) : run_loop(bench);
}

/* ---- the whole --------------------------------------------------------------------- */

static double median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int measure(struct bench *bench)
{
    double rates[KINDS][ROUNDS_MAX], cpus[KINDS][ROUNDS_MAX], kilos[KINDS][ROUNDS_MAX];
    double ratios[ROUNDS_MAX], ratio;
    double least, most;
    bool good;

    for (unsigned round = 0; round < bench->rounds; round++) {
        for (unsigned turn = 0; turn < KINDS; turn++) {
            enum kind kind = (enum kind)((turn + round) % KINDS);
            struct figure figure = run(bench, kind, round);

            rates[kind][round] = figure.rate;
            cpus[kind][round] = figure.cpu_us;
            kilos[kind][round] = figure.kilo;
        }
        ratios[round] = rates[HAPAX][round] / rates[BARE][round];
    }
    ratio = median(ratios, bench->rounds);
    least = ratios[0];
    most = ratios[bench->rounds - 1];
    good = ratio >= bench->bound * (100 - bench->tolerance) / 100;
    printf("%.10s | %s |", bench->store, bench->http ? "http" : "c");
    for (unsigned kind = 0; kind < KINDS; kind++)
        printf(" %s %.0f/s %.1f us %.1f k |", kind_names[kind], median(rates[kind], bench->rounds),
               median(cpus[kind], bench->rounds), median(kilos[kind], bench->rounds));
    printf(" hapax/bare %.2f (%.2f to %.2f)", ratio, least, most);
    if (bench->bound > 0)
        printf(", bound %.2f - %u %%: %s", bench->bound, bench->tolerance, good ? "ok" : "MISSED");
    printf("\n");
    return good ? 0 : 1;
}

static unsigned number_of(const char *text, unsigned long max)
{
    char *end;
    unsigned long number;

    errno = 0;
    number = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number > max)
        die("a number is out of bounds", text);
    return (unsigned)number;
}

static void read_option(struct bench *bench, const char *name, const char *value)
{
    if (strcmp(name, "--broker") == 0)
        bench->broker = value;
    else if (strcmp(name, "--store") == 0)
        bench->store = value;
    else if (strcmp(name, "--type") == 0)
        bench->type = value;
    else if (strcmp(name, "--handler") == 0)
        bench->http = strcmp(value, "http") == 0;
    else if (strcmp(name, "--messages") == 0)
        bench->messages = number_of(value, 10000000);
    else if (strcmp(name, "--rounds") == 0)
        bench->rounds = number_of(value, ROUNDS_MAX);
    else if (strcmp(name, "--hands") == 0)
        bench->hands = number_of(value, HAPAX_CONCURRENCY_MAX);
    else if (strcmp(name, "--in-hand") == 0)
        bench->in_hand = number_of(value, HAPAX_IN_HAND_MAX);
    else if (strcmp(name, "--tolerance") == 0)
        bench->tolerance = number_of(value, 100);
    else if (strcmp(name, "--bound") == 0)
        bench->bound = strtod(value, NULL);
    else
        die("no such option", name);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.store = "memory:",
                                 .type = "classic",
                                 .messages = 40000,
                                 .rounds = 3,
                                 .hands = 64,
                                 .in_hand = 256,
                                 .tolerance = 10};
    char text[HAPAX_TEXT_MAX];
    int status;

    for (int i = 1; i + 1 < argc; i += 2)
        read_option(&bench, argv[i], argv[i + 1]);
    if (argc % 2 == 0 || !bench.broker || bench.rounds == 0 || bench.messages == 0)
        die("usage: consume_bench --broker URI [--store URI] [OPTIONS]", NULL);
    if (bench.http)
        open_post(&bench);
    counter = count_instructions(0);
#ifdef HAPAX_BENCH_ROCKSDB
    hapax_rocksdb_use();
#endif
    if (hapax_open(&bench.h, bench.store, NULL, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    status = measure(&bench);
    (void)hapax_close(bench.h, 5000);
    hapax__post_close(bench.post);
    return status;
}
