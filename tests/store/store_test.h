/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store suite's files share: a case is a function that runs in a process of its own, opens
 * the store by suite->uri and returns, or fails by CHECK. So a crash, a hang or a handle left open
 * is one failed case, and no handle ever crosses a fork.
 */
#ifndef HAPAX_TESTS_STORE_TEST_H
#define HAPAX_TESTS_STORE_TEST_H

#include <hapax/store.h>
#include <stdio.h>
#include <unistd.h>

struct suite {
    const char *asked; /* the URI of the command line */
    char uri[512]; /* what to open */
    char folder[64]; /* "" unless the URI said @tmp */
    char scope[48]; /* no other run uses it, nor one that begins with it */
    uint64_t seed; /* of this case */
    unsigned children; /* of the cases with many processes */
    unsigned seconds; /* of the storm */
    unsigned rounds; /* of random histories */
    bool fresh; /* nobody else's records are in the store */
    bool unordered; /* its LIST comes in no order, and may show a record twice */
    bool hinted; /* IN_FLIGHT may be what a lock says that stands a moment longer than its claim */
    bool single; /* the store is private to its handle */
    bool sealed; /* its handles seal outcomes */
    bool rotated; /* its secret is being changed */
    bool halves; /* each operation has two records: in a move, or as its secret is being changed */
};

struct test_case {
    const char *name;
    void (*run)(const struct suite *suite);
    bool many; /* needs processes that share the store */
    bool durable; /* needs records that outlive the handle */
};

/* Arrays that end with a zeroed entry. */
extern const struct test_case rule_cases[];
extern const struct test_case history_cases[];
extern const struct test_case process_cases[];

/* Ends the case, unless ok. Prints where, and what printf would. */
#define CHECK(ok, ...)                                                                             \
    do {                                                                                           \
        if (!(ok)) {                                                                               \
            printf("# %s:%d: %s: ", __FILE__, __LINE__, #ok);                                      \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- helpers (store_case.c) ------------------------------------------------------ */

struct hapax_store *open_store(const struct suite *suite);

/* Runs one op, which must get a verdict, and checks what holds for every answer. */
void run_op(struct hapax_store *store, struct hapax_op *op);

/* An op on the n-th id of this case by the who-th token, everything else set to ordinary values. */
struct hapax_op op_of(const struct suite *suite, enum hapax_op_kind kind, unsigned n, unsigned who);

int64_t monotonic_ms(void);

/* Polls the store until its clock has reached the time. */
void wait_until(struct hapax_store *store, const struct suite *suite, int64_t store_us);

/* The next of a row of numbers; *state is never 0. */
uint64_t next_random(uint64_t *state);

/* Sets the URI from the one of the command line; `@tmp` in it becomes a new folder. */
void make_folder(struct suite *suite);
void remove_folder(const struct suite *suite);

/* Waits for a process, and kills its group (or it) where that takes too long: -1 then. */
int wait_for(pid_t pid, int64_t timeout_ms, bool group);

/* Runs the case in a process and a group of its own, which closes `inherited` (-1: none), and ends
 * what a failed one leaves behind. True: it passed. */
bool run_alone(const struct suite *suite, const struct test_case *test, int inherited);

#endif
