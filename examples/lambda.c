/* SPDX-License-Identifier: Apache-2.0
 *
 * A Lambda function in C that writes each order into $LEDGER (./ledger.txt) once, however often it
 * is sent: over HTTP with an Idempotency-Key, or in messages of a queue, which have an id each. It
 * is its own runtime: put it into a function of provided.al2023 as `bootstrap`, with HAPAX_STORE in
 * the environment.
 */
#include <hapax/lambda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>

static enum hapax_class take_order(struct hapax_attempt *attempt,
                                   const struct hapax_lambda_event *event, void *arg)
{
    const char *path = getenv("LEDGER");
    FILE *ledger = fopen(path ? path : "ledger.txt", "a");
    char receipt[100];

    (void)arg;
    if (!ledger)
        return HAPAX_CLASS_NOT_RUN; /* surely nothing happened: it is tried again */
    fprintf(ledger, "%.*s\n", (int)event->json.len, (const char *)event->json.ptr);
    if (fclose(ledger) != 0)
        return HAPAX_CLASS_UNKNOWN; /* perhaps the line is there, perhaps not */
    snprintf(receipt, sizeof(receipt), "{\"taken_by_attempt\":%u}", hapax_attempt_number(attempt));
    hapax_attempt_outcome(attempt, 201, hapax_str("Content-Type: application/json\r\n"),
                          hapax_str(receipt));
    return HAPAX_CLASS_FINAL;
}

static void say(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "lambda: %s\n", line);
}

/* Readable once the sandbox is being ended. Call it before any thread is started. */
static int stop_fd(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(void)
{
    const char *uri = getenv("HAPAX_STORE");
    struct hapax_lambda lambda;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax *h;

    hapax_lambda_init(&lambda);
    lambda.runtime_api = getenv("AWS_LAMBDA_RUNTIME_API");
    lambda.scope = getenv("AWS_LAMBDA_FUNCTION_NAME");
    lambda.stop_fd = stop_fd();
    lambda.log = say;
    if (hapax_open(&h, uri ? uri : "", NULL, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "lambda: HAPAX_STORE: %s\n", text), 2;
    error = hapax_lambda_run(h, &lambda, take_order, NULL, NULL, text);
    if (error != HAPAX_ERR_NONE)
        fprintf(stderr, "lambda: %s\n", text);
    hapax_close(h, lambda.policy.save_wait_ms);
    return error == HAPAX_ERR_NONE ? 0 : 1;
}
