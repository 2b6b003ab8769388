/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of AWS as a test asks for them: aws_call NAME=VALUE… OPERATION BODY
 *
 *     service target region endpoint profile connections connect_ms try_ms    as in aws.h
 *     deadline_ms=5000  n=1 calls side by side  rounds=1  once=0
 *     loop=1            by submit, pump and reap
 *     cancel=MS         each call is cancelled after so long; by the loop
 *     step=1            waits for a line on stdin before each round
 *
 * Each call is a line, with tabs between its fields: result, status, tries, unsure, error, bytes of
 * the reply, ms it took, text.
 */
#include "../must.h"
#include "aws/aws.h"
#include "base/clock.h"

#include <poll.h>
#include <string.h>

#define CALLS_MAX 256

struct asked {
    struct hapax__aws_options options;
    const char *operation;
    const char *body;
    long deadline_ms;
    long n;
    long rounds;
    long once;
    long loop;
    long cancel;
    long step;
};

static bool set_number(struct asked *a, const char *name, long value)
{
    struct {
        const char *name;
        long *at;
    } const numbers[] = {
        {"deadline_ms", &a->deadline_ms},
        {"n", &a->n},
        {"rounds", &a->rounds},
        {"once", &a->once},
        {"loop", &a->loop},
        {"step", &a->step},
        {"cancel", &a->cancel},
        {"try_ms", &a->options.try_ms},
        {"connect_ms", &a->options.connect_ms},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].at = value;
            return true;
        }
    }
    return false;
}

static void set(struct asked *a, char *word)
{
    char *value = strchr(word, '=');
    struct {
        const char *name;
        const char **at;
    } const texts[] = {
        {"service", &a->options.service},   {"target", &a->options.target},
        {"region", &a->options.region},     {"profile", &a->options.profile},
        {"endpoint", &a->options.endpoint},
    };

    must(value);
    *value++ = '\0';
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strcmp(word, texts[i].name) == 0) {
            *texts[i].at = value;
            return;
        }
    }
    if (strcmp(word, "connections") == 0)
        a->options.connections_max = (uint32_t)strtoul(value, NULL, 10);
    else
        must(set_number(a, word, strtol(value, NULL, 10)));
}

static void show(const struct hapax__aws_call *call, int64_t began_us)
{
    static const char *const results[] = {"open", "ok", "refused", "unavailable", "indeterminate"};

    printf("%s\t%d\t%u\t%d\t%s\t%zu\t%lld\t%s\n", results[call->result], call->status, call->tries,
           call->unsure, call->error, call->reply.len,
           (long long)((hapax__monotonic_us() - began_us) / 1000), call->text);
}

static void wait_for_work(struct hapax__aws *aws, int64_t until_us)
{
    struct pollfd fd = {.fd = hapax__aws_fd(aws), .events = POLLIN};
    int64_t due = hapax__aws_due(aws), now = hapax__monotonic_us();

    if (until_us < due)
        due = until_us;
    if (due > now)
        poll(&fd, 1, due - now > 60000000 ? 60000 : (int)((due - now) / 1000 + 1));
}

static void run_loop(struct hapax__aws *aws, const struct asked *a, struct hapax__aws_call *calls,
                     int64_t began_us)
{
    int64_t until_us = a->cancel > 0 ? began_us + a->cancel * 1000 : INT64_MAX;
    struct hapax__aws_call *call;
    long ended = 0;

    for (long i = 0; i < a->n; i++)
        hapax__aws_submit(aws, &calls[i]);
    while (ended < a->n) {
        hapax__aws_pump(aws);
        for (; (call = hapax__aws_reap(aws)); ended++)
            must(call->tag == aws);
        for (long i = 0; i < a->n && hapax__monotonic_us() >= until_us; i++) {
            if (calls[i].result != HAPAX__AWS_OPEN)
                continue;
            hapax__aws_cancel(aws, &calls[i]);
            must(calls[i].result != HAPAX__AWS_OPEN);
            ended++;
        }
        if (ended < a->n)
            wait_for_work(aws, until_us);
    }
}

static void round_of(struct hapax__aws *aws, const struct asked *a)
{
    static struct hapax__aws_call calls[CALLS_MAX];
    int64_t began_us = hapax__monotonic_us();

    for (long i = 0; i < a->n; i++)
        calls[i] = (struct hapax__aws_call){.operation = a->operation,
                                            .body = hapax_str(a->body),
                                            .deadline_us = began_us + a->deadline_ms * 1000,
                                            .once = a->once != 0,
                                            .tag = aws};
    if (a->loop || a->cancel > 0)
        run_loop(aws, a, calls, began_us);
    else
        hapax__aws_run(aws, calls, (size_t)a->n);
    for (long i = 0; i < a->n; i++) {
        show(&calls[i], began_us);
        hapax__aws_call_release(&calls[i]);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct asked a = {.options = {.service = "dynamodb",
                                  .target = "DynamoDB_20120810",
                                  .region = "eu-central-1",
                                  .connections_max = 4,
                                  .connect_ms = 1000,
                                  .try_ms = 2000},
                      .deadline_ms = 5000,
                      .n = 1,
                      .rounds = 1};
    char text[HAPAX_TEXT_MAX], line[16];
    struct hapax__aws *aws;

    must(argc >= 3);
    for (int i = 1; i < argc - 2; i++)
        set(&a, argv[i]);
    must(a.n >= 1 && a.n <= CALLS_MAX);
    a.operation = argv[argc - 2];
    a.body = argv[argc - 1];
    if (hapax__aws_open(&aws, &a.options, text) != HAPAX_ERR_NONE) {
        printf("open\t%s\n", text);
        return 1;
    }
    for (long i = 0; i < a.rounds; i++) {
        if (a.step && !fgets(line, sizeof(line), stdin))
            break;
        round_of(aws, &a);
    }
    hapax__aws_close(aws);
    return 0;
}
