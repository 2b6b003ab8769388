/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax_execute() costs in a program of many threads. Each thread calls as fast as it can,
 * with new keys but for some percent of repeats, and a handler that does nothing. Over memory only
 * the handle, the pulse and the lane are between, so the figure is the cost of the door. Over
 * another store it shows how well calls gather into batches.
 *
 *     execute_bench [--store URI] [--threads N] [--seconds S] [--duplicates PCT]
 */
#include <hapax/hapax.h>

#include "bench.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS_MAX 1024
#define SAMPLES_MAX 200000 /* per thread; later calls are counted and not timed */

struct bench {
    struct hapax *h;
    struct hapax_policy policy;
    unsigned duplicates;
    atomic_bool over;
};

struct worker {
    struct bench *bench;
    pthread_t thread;
    unsigned number;
    uint64_t calls;
    uint64_t replays;
    size_t samples;
    int64_t *ns;
};

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    uint8_t body[300] = {0};

    (void)arg;
    if (hapax_attempt_outcome(attempt, 200, hapax_str(NULL),
                              (struct hapax_span){body, sizeof(body)}) != HAPAX_ERR_NONE)
        return HAPAX_CLASS_NOT_RUN;
    return HAPAX_CLASS_FINAL;
}

static void call(struct worker *worker, uint64_t key_number)
{
    struct hapax_request request;
    struct hapax_answer answer;
    char key[64], text[HAPAX_TEXT_MAX];
    int64_t begun_ns = now_ns();

    memset(&request, 0, sizeof(request));
    snprintf(key, sizeof(key), "%ld %u %llu", (long)getpid(), worker->number,
             (unsigned long long)key_number);
    request.key = hapax_str(key);
    if (hapax_execute(worker->bench->h, &worker->bench->policy, &request, handle, NULL, NULL,
                      &answer, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    if (answer.kind != HAPAX_ANSWER_FRESH && answer.kind != HAPAX_ANSWER_REPLAY)
        die(hapax_answer_name(answer.kind), NULL);
    worker->calls++;
    worker->replays += answer.kind == HAPAX_ANSWER_REPLAY;
    hapax_answer_release(&answer);
    if (worker->samples < SAMPLES_MAX)
        worker->ns[worker->samples++] = now_ns() - begun_ns;
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    uint64_t key_number = 0;
    unsigned share = 0;

    while (!atomic_load(&worker->bench->over)) {
        share += worker->bench->duplicates;
        if (share >= 100 && key_number > 0)
            share -= 100;
        else
            key_number++;
        call(worker, key_number);
    }
    return NULL;
}

static void print(struct worker *workers, unsigned threads, double seconds)
{
    uint64_t calls = 0, replays = 0;
    size_t n = 0;
    int64_t *all;

    for (unsigned i = 0; i < threads; i++)
        n += workers[i].samples;
    all = calloc(n + 1, sizeof(*all));
    if (!all)
        die("out of memory", NULL);
    n = 0;
    for (unsigned i = 0; i < threads; i++) {
        memcpy(all + n, workers[i].ns, workers[i].samples * sizeof(*all));
        n += workers[i].samples;
        calls += workers[i].calls;
        replays += workers[i].replays;
    }
    qsort(all, n, sizeof(*all), by_size);
    printf("%u threads: %.0f calls/s, %.1f %% replays, p50 %.1f us, p99 %.1f us\n", threads,
           (double)calls / seconds, 100.0 * (double)replays / (double)(calls ? calls : 1),
           (double)all[n / 2] / 1000, (double)all[n * 99 / 100] / 1000);
    free(all);
}

static void run(struct bench *bench, unsigned threads, unsigned seconds)
{
    static struct worker workers[THREADS_MAX];
    int64_t begun_ns = now_ns();

    for (unsigned i = 0; i < threads; i++) {
        workers[i].bench = bench;
        workers[i].number = i;
        workers[i].ns = calloc(SAMPLES_MAX, sizeof(*workers[i].ns));
        if (!workers[i].ns ||
            pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
            die("cannot start a thread", NULL);
    }
    sleep(seconds);
    atomic_store(&bench->over, true);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    print(workers, threads, (double)(now_ns() - begun_ns) / 1e9);
    for (unsigned i = 0; i < threads; i++)
        free(workers[i].ns);
}

static unsigned number_of(const char *text, unsigned long max)
{
    char *end;
    unsigned long number;

    errno = 0;
    number = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number > max)
        die("a number is out of bounds", NULL);
    return (unsigned)number;
}

int main(int argc, char **argv)
{
    struct bench bench = {.duplicates = 0};
    const char *uri = "memory:";
    unsigned threads = 64, seconds = 3;
    char text[HAPAX_TEXT_MAX];

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            die("usage: execute_bench [--store URI] [--threads N] [--seconds S] "
                "[--duplicates PCT]",
                NULL);
        if (strcmp(argv[i], "--store") == 0)
            uri = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            threads = number_of(argv[i + 1], THREADS_MAX);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = number_of(argv[i + 1], 600);
        else if (strcmp(argv[i], "--duplicates") == 0)
            bench.duplicates = number_of(argv[i + 1], 99);
        else
            die("no such option", NULL);
    }
#ifdef HAPAX_BENCH_ROCKSDB
    hapax_rocksdb_use();
#endif
    if (hapax_open(&bench.h, uri, NULL, text) != HAPAX_ERR_NONE)
        die(text, NULL);
    hapax_policy_init(&bench.policy);
    run(&bench, threads, seconds);
    return hapax_close(bench.h, bench.policy.save_wait_ms) == 0 ? 0 : 1;
}
