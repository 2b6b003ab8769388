/* SPDX-License-Identifier: Apache-2.0
 *
 * An order in three steps, each done once, however often the program is called and wherever it
 * dies:
 *     order order-17 0      fresh: out of stock (charge fresh, reserve fresh)
 *     order order-17 5      fresh: ordered (charge replay, reserve fresh, mail fresh)
 *     order order-17 5      replay: ordered
 * After each call a line counts what the three services were asked to do:
 *     charged 1, reserved 0, mailed 0
 *     charged 1, reserved 1, mailed 1
 *     charged 1, reserved 1, mailed 1
 * The number is how many are in stock. The services are files: ./charges.txt, ./reservations.txt
 * and ./mails.txt, with a line for each key they were given. Exit code: 0 ordered, 1 not, 2 usage
 * or store.
 */
#include <hapax/hapax.h>
#include <stdio.h>
#include <stdlib.h>

struct order {
    long stock;
    char told[100]; /* how each step was answered in this call */
    size_t told_len;
};

/* What each service does: it notes the key that it is given. By that key it would know a repeat. */
static enum hapax_class ask_service(struct hapax_attempt *step, const char *file)
{
    struct hapax_span key = hapax_attempt_key(step); /* as "order-17:charge" */
    FILE *book = fopen(file, "a");

    if (!book)
        return HAPAX_CLASS_NOT_RUN;
    fprintf(book, "%.*s\n", (int)key.len, (const char *)key.ptr);
    if (fclose(book) != 0)
        return HAPAX_CLASS_UNKNOWN;
    hapax_attempt_outcome(step, 201, hapax_str(NULL), key);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class charge(struct hapax_attempt *step, void *order)
{
    (void)order;
    return ask_service(step, "charges.txt");
}

static enum hapax_class reserve(struct hapax_attempt *step, void *order)
{
    if (((struct order *)order)->stock > 0)
        return ask_service(step, "reservations.txt");
    hapax_attempt_outcome(step, 409, hapax_str(NULL), hapax_str("out of stock"));
    return HAPAX_CLASS_FAILED; /* so that it is tried again */
}

static enum hapax_class mail(struct hapax_attempt *step, void *order)
{
    (void)order;
    return ask_service(step, "mails.txt");
}

/* True: the step is done, now or by an earlier attempt. */
static bool do_step(struct hapax_attempt *attempt, const char *name, hapax_handler *fn,
                    struct order *order)
{
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    bool done;

    if (hapax_step(attempt, name, fn, order, &answer, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "order: %s: %s\n", name, text), false;
    done = answer.outcome.status == 201;
    order->told_len += (size_t)snprintf(
        order->told + order->told_len, sizeof(order->told) - order->told_len, "%s%s %s",
        order->told_len > 0 ? ", " : "", name, hapax_answer_name(answer.kind));
    hapax_answer_release(&answer);
    return done;
}

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    struct order *order = arg;

    if (!do_step(attempt, "charge", charge, order) ||
        !do_step(attempt, "reserve", reserve, order) || !do_step(attempt, "mail", mail, order)) {
        hapax_attempt_outcome(attempt, 409, hapax_str(NULL), hapax_str("out of stock"));
        return HAPAX_CLASS_FAILED;
    }
    hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("ordered"));
    return HAPAX_CLASS_FINAL;
}

static int count(const char *file)
{
    FILE *book = fopen(file, "r");
    int lines = 0, c;

    while (book && (c = fgetc(book)) != EOF)
        lines += c == '\n';
    if (book)
        fclose(book);
    return lines;
}

static void report(const struct hapax_answer *answer, const struct order *order)
{
    printf("%s: %.*s", hapax_answer_name(answer->kind), (int)answer->outcome.body.len,
           answer->outcome.body.len > 0 ? (const char *)answer->outcome.body.ptr : "");
    if (order->told_len > 0)
        printf(" (%s)", order->told);
    printf("\ncharged %d, reserved %d, mailed %d\n", count("charges.txt"),
           count("reservations.txt"), count("mails.txt"));
}

int main(int argc, char **argv)
{
    struct hapax_request request = {.scope = hapax_str("orders")};
    struct order order = {0};
    struct hapax_policy policy;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    int code = 2;

    if (argc < 3)
        return fprintf(stderr, "usage: order KEY STOCK [STORE-URI]\n"), 2;
    order.stock = strtol(argv[2], NULL, 10);
    hapax_rocksdb_use();
    if (hapax_open(&h, argc > 3 ? argv[3] : "rocksdb:order.db", NULL, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "order: %s\n", text), 2;
    hapax_policy_init(&policy);
    request.key = hapax_str(argv[1]);
    hapax_digest(&request.fingerprint, &request.key,
                 1); /* here the key is all there is to an order */
    if (hapax_execute(h, &policy, &request, handle, NULL, &order, &answer, text) ==
        HAPAX_ERR_NONE) {
        code = answer.outcome.status == 201 ? 0 : 1;
        report(&answer, &order);
        hapax_answer_release(&answer);
    } else {
        fprintf(stderr, "order: %s\n", text);
    }
    return hapax_close(h, policy.save_wait_ms) == 0 ? code : 1;
}
