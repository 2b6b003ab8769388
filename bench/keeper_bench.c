/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to reach the embedded store through its keeper. 64 threads call hapax_execute()
 * with new keys and 300 bytes of outcome. Turns of a quarter second go by turns to a store that
 * this process has open and to one that a child process serves. Each is a database of its own, so
 * both see the same machine. Exits 1 if the keeper's rate is less than 0.7 of the other. Beside the
 * rates stand the instructions of both processes for an operation, which others do not change.
 *
 *     keeper_bench [--seconds S]
 */
#include <hapax/hapax.h>
#include <hapax/store.h>

#include "bench.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLERS   64u
#define TURN_NS   250000000
#define RATIO_MIN 0.7

static struct hapax *handles[2]; /* in process, through the keeper */
static atomic_uint turn; /* whose; 2: over */
static atomic_uint_fast64_t calls[2];
static int64_t spent_ns[2];
static int counter; /* of the instructions of both processes; 0: none */
static int64_t instructions[2];

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    static const uint8_t body[300];

    (void)arg;
    if (hapax_attempt_outcome(attempt, 200, hapax_str(NULL),
                              (struct hapax_span){body, sizeof(body)}) != HAPAX_ERR_NONE)
        return HAPAX_CLASS_NOT_RUN;
    return HAPAX_CLASS_FINAL;
}

static void *caller_main(void *arg)
{
    struct hapax_policy policy;
    struct hapax_request request;
    struct hapax_answer answer;
    char key[64], text[HAPAX_TEXT_MAX];
    unsigned which;

    hapax_policy_init(&policy);
    memset(&request, 0, sizeof(request));
    for (uint64_t n = 0; (which = atomic_load(&turn)) < 2; n++) {
        snprintf(key, sizeof(key), "%u %llu", *(unsigned *)arg, (unsigned long long)n);
        request.key = hapax_str(key);
        if (hapax_execute(handles[which], &policy, &request, handle, NULL, NULL, &answer, text) !=
            HAPAX_ERR_NONE)
            die("execute", text);
        if (answer.kind != HAPAX_ANSWER_FRESH || !answer.recorded)
            die("answer", hapax_answer_name(answer.kind));
        hapax_answer_release(&answer);
        atomic_fetch_add(&calls[which], 1);
    }
    return NULL;
}

/* The child: holds a store until its parent closes the pipe. */
static void hold(const char *uri, int ready_fd, int end_fd)
{
    char text[HAPAX_TEXT_MAX], byte = 1;
    struct hapax_store *store;

    hapax_rocksdb_use();
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        die("open in the child", text);
    if (write(ready_fd, &byte, 1) != 1 || read(end_fd, &byte, 1) < 0)
        die("child", "its pipe broke");
    hapax_store_close(store);
    exit(0);
}

/* Returns the end of a pipe whose closing ends the child. */
static int start_holder(const char *uri, pid_t *child)
{
    int ready[2], end[2];
    char byte;

    if (pipe(ready) != 0 || pipe(end) != 0)
        die("start", "no pipe");
    *child = fork();
    if (*child < 0)
        die("start", "cannot fork");
    if (*child == 0) {
        close(end[1]);
        hold(uri, ready[1], end[0]);
    }
    close(ready[1]);
    close(end[0]);
    if (read(ready[0], &byte, 1) != 1)
        die("start", "the child did not open its store");
    close(ready[0]);
    return end[1];
}

static void take_turns(double seconds)
{
    int64_t end_ns = now_ns() + (int64_t)(seconds * 1e9);
    struct timespec pause = {0, TURN_NS};

    for (unsigned n = 0; now_ns() < end_ns || n % 2 != 0; n++) {
        int64_t begun_ns = now_ns(), before = counted(counter);

        atomic_store(&turn, n % 2);
        nanosleep(&pause, NULL);
        spent_ns[n % 2] += now_ns() - begun_ns;
        instructions[n % 2] += counted(counter) - before;
    }
    atomic_store(&turn, 2);
}

static double per_second(unsigned which)
{
    return (double)atomic_load(&calls[which]) * 1e9 / (double)spent_ns[which];
}

/* Thousands of instructions of an operation. */
static double kilo(unsigned which)
{
    return (double)instructions[which] / 1e3 / (double)atomic_load(&calls[which]);
}

static void open_handle(struct hapax **out, const char *uri)
{
    char text[HAPAX_TEXT_MAX];

    if (hapax_open(out, uri, NULL, text) != HAPAX_ERR_NONE)
        die("open", text);
}

int main(int argc, char **argv)
{
    double seconds = argc == 3 && strcmp(argv[1], "--seconds") == 0 ? strtod(argv[2], NULL) : 6;
    char folder[] = "/tmp/hapax-bench-XXXXXX", uri[96];
    unsigned numbers[CALLERS];
    pthread_t threads[CALLERS];
    pid_t child;
    int end_fd;

    if (!mkdtemp(folder))
        die(folder, "cannot make it");
    snprintf(uri, sizeof(uri), "rocksdb:%s/kept", folder);
    counter = count_instructions(0); /* before the child is there, so that it is counted, too */
    end_fd = start_holder(uri, &child);
    snprintf(uri, sizeof(uri), "unix:%s/kept/keeper.sock", folder);
    open_handle(&handles[1], uri);
    hapax_rocksdb_use();
    snprintf(uri, sizeof(uri), "rocksdb:%s/own", folder);
    open_handle(&handles[0], uri);
    for (unsigned i = 0; i < CALLERS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, caller_main, &numbers[i]) != 0)
            die("start", "no thread");
    }
    take_turns(seconds);
    for (unsigned i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    printf("64 callers, store in process   %8.0f operations/s\n", per_second(0));
    printf("64 callers, through the keeper %8.0f operations/s\n", per_second(1));
    if (counter > 0)
        printf("thousands of instructions: %.1f in process, %.1f through the keeper (%.2f)\n",
               kilo(0), kilo(1), kilo(0) / kilo(1));
    printf("ratio %.2f (at least %.2f)\n", per_second(1) / per_second(0), RATIO_MIN);
    hapax_close(handles[0], 1000);
    hapax_close(handles[1], 1000);
    close(end_fd);
    waitpid(child, NULL, 0);
    remove_folder(folder);
    return per_second(1) / per_second(0) < RATIO_MIN;
}
