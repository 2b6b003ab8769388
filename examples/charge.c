/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges a card once per key, however often it is called:
 *     charge order-17 4200        fresh: charged 4200 by attempt 1
 *     charge order-17 4200        replay: charged 4200 by attempt 1
 *     charge order-17 9900        mismatch:
 * The charge is a line in ./ledger.txt. Exit code: 0 charged, 1 not, 2 usage or store.
 */
#include <hapax/hapax.h>
#include <stdio.h>

static enum hapax_class charge(struct hapax_attempt *attempt, void *amount)
{
    FILE *ledger = fopen("ledger.txt", "a");
    char receipt[100];

    if (!ledger)
        return HAPAX_CLASS_NOT_RUN; /* surely nothing happened: a retry may run */
    fprintf(ledger, "%s\n", (const char *)amount);
    if (fclose(ledger) != 0)
        return HAPAX_CLASS_UNKNOWN; /* perhaps the line is there, perhaps not */
    snprintf(receipt, sizeof(receipt), "charged %.60s by attempt %u", (const char *)amount,
             hapax_attempt_number(attempt));
    hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str(receipt));
    return HAPAX_CLASS_FINAL;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 3 ? argv[3] : "rocksdb:charge.db";
    struct hapax_request request = {.scope = hapax_str("charges")};
    struct hapax_policy policy;
    struct hapax_answer answer;
    struct hapax_span amount;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    int code = 2;

    if (argc < 3)
        return fprintf(stderr, "usage: charge KEY AMOUNT [STORE-URI]\n"), 2;
    hapax_rocksdb_use();
    if (hapax_open(&h, uri, NULL, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "charge: %s\n", text), 2;
    hapax_policy_init(&policy);
    request.key = hapax_str(argv[1]);
    amount = hapax_str(argv[2]);
    hapax_digest(&request.fingerprint, &amount, 1); /* the same key for another amount is refused */
    if (hapax_execute(h, &policy, &request, charge, NULL, argv[2], &answer, text) ==
        HAPAX_ERR_NONE) {
        code = answer.outcome.status == 201 ? 0 : 1;
        printf("%s: %.*s\n", hapax_answer_name(answer.kind), (int)answer.outcome.body.len,
               answer.outcome.body.len > 0 ? (const char *)answer.outcome.body.ptr : "");
        hapax_answer_release(&answer);
    } else {
        fprintf(stderr, "charge: %s\n", text);
    }
    return hapax_close(h, policy.save_wait_ms) == 0 ? code : 1;
}
