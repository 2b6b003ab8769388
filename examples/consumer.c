/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes orders from a queue and writes each into ./ledger.txt once, however often it is sent and
 * delivered:
 *     consumer 'amqp://localhost/?queue=orders' [STORE-URI]
 * The body is the order. Its key is in the usual headers, or is the message's id. After Ctrl-C,
 * what runs finishes first. Exit code: 0 stopped, 1 there is no such queue, 2 usage or store.
 */
#include <hapax/consume.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>

static enum hapax_class take_order(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                   void *arg)
{
    const struct hapax_message *order = hapax_delivery_message(delivery);
    FILE *ledger = fopen("ledger.txt", "a");
    char receipt[100];

    (void)arg;
    if (!ledger)
        return HAPAX_CLASS_NOT_RUN; /* surely nothing happened: it is tried again */
    if (order->body.len == 0) {
        hapax_delivery_refuse(delivery, "the order is empty"); /* to the dead letters, at once */
        fclose(ledger);
        return HAPAX_CLASS_FAILED;
    }
    fprintf(ledger, "%.*s\n", (int)order->body.len, (const char *)order->body.ptr);
    if (fclose(ledger) != 0)
        return HAPAX_CLASS_UNKNOWN; /* perhaps the line is there, perhaps not */
    snprintf(receipt, sizeof(receipt), "taken by attempt %u", hapax_attempt_number(attempt));
    hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str(receipt));
    return HAPAX_CLASS_FINAL;
}

static void say(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "consumer: %s\n", line);
}

/* Readable once the process got SIGINT or SIGTERM. Call it before any thread is started. */
static int stop_fd(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv)
{
    struct hapax_consumer consumer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax *h;

    if (argc < 2)
        return fprintf(stderr, "usage: consumer URI [STORE-URI]\n"), 2;
    hapax_consumer_init(&consumer);
    consumer.from = argv[1];
    consumer.stop_fd = stop_fd();
    consumer.log = say;
    hapax_rocksdb_use();
    if (hapax_open(&h, argc > 2 ? argv[2] : "rocksdb:consumer.db", NULL, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "consumer: %s\n", text), 2;
    error = hapax_consumer_run(h, &consumer, take_order, NULL, NULL, NULL, text);
    if (error != HAPAX_ERR_NONE)
        fprintf(stderr, "consumer: %s\n", text);
    hapax_close(h, consumer.policy.save_wait_ms);
    return error == HAPAX_ERR_NONE ? 0 : error == HAPAX_ERR_REFUSED ? 1 : 2;
}
