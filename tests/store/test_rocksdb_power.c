/* SPDX-License-Identifier: Apache-2.0
 *
 * Power cuts. A lane judges a batch while the batch before is synced. An image of the disk, as
 * a power cut would leave it just before a sync, has all that anybody was told of by then: what was
 * acknowledged, and what was shown. And where a sync fails, nobody is told of what it was to make
 * durable.
 */
#include "rocksdb_fixture.h"

#include "../cases.h"
#include "failing_io.h"
#include "lane/lane.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CLIENTS    48u
#define NUMBERS    4000u
#define IMAGES     10u
#define EACH       11u /* syncs from one image to the next */
#define TOLD_BEGUN 1u
#define TOLD_DONE  2u

struct client {
    struct hapax__job job; /* first: a job is cast to its client */
    uint64_t n;
    bool reads; /* what others do */
    uint8_t body[BODY_SIZE];
};

struct world {
    struct fixture *f;
    struct hapax__lane *lane;
    struct client clients[CLIENTS];
    uint64_t next;
    uint32_t waiting;
    uint32_t errors;
    long nth; /* of the calls of the disk, the one that fails */
    uint32_t failed;

    pthread_mutex_t lock; /* of what follows */
    uint8_t told[NUMBERS];
    unsigned syncs, images;
    uint8_t told_by[IMAGES][NUMBERS]; /* when the image was taken */
};

static void path_of_image(const struct world *w, unsigned image, const char *below, char out[128])
{
    snprintf(out, 128, "%s-%u%s", w->f->path, image % IMAGES, below);
}

/* Called in the thread that syncs. */
static void take_image(void *arg)
{
    struct world *w = arg;
    char from[128], to[128];

    pthread_mutex_lock(&w->lock);
    if (++w->syncs % EACH == 0 && w->images < IMAGES) {
        memcpy(w->told_by[w->images], w->told, sizeof(w->told));
        path_of_image(w, w->images, "", to);
        mkdir(to, 0700);
        path_of_image(w, w->images, "/db", to);
        mkdir(to, 0700);
        snprintf(from, sizeof(from), "%s/db", w->f->path);
        failing_io_image(from, to);
        w->images++;
    }
    pthread_mutex_unlock(&w->lock);
}

static void submit(struct world *w, struct client *client, struct hapax_op op)
{
    client->job = (struct hapax__job){.op = op};
    assert_true(hapax__lane_submit(w->lane, &client->job));
    w->waiting++;
}

static void begin(struct world *w, struct client *client)
{
    if (w->next == NUMBERS)
        return;
    client->n = client->reads ? w->next - 1 - w->next % CLIENTS / 2 : w->next++;
    submit(w, client, client->reads ? read_of(client->n) : claim_of(client->n, 1));
}

static void tell(struct world *w, const struct hapax_op *op, uint64_t n)
{
    enum hapax_state state = op->kind == HAPAX_OP_READ       ? op->record.state
                             : op->kind == HAPAX_OP_COMPLETE ? HAPAX_STATE_COMPLETED
                                                             : HAPAX_STATE_STARTED;

    if (op->verdict == HAPAX_ABSENT)
        return;
    pthread_mutex_lock(&w->lock);
    w->told[n] |= state == HAPAX_STATE_COMPLETED ? TOLD_DONE : TOLD_BEGUN;
    pthread_mutex_unlock(&w->lock);
}

/* Takes an answer, and asks what comes next. After an error the next operation does. */
static void take(struct world *w, struct client *client)
{
    const struct hapax_op *op = &client->job.op;

    w->waiting--;
    free(client->job.memory);
    if (op->verdict == HAPAX_NO_VERDICT) {
        assert_true(op->error == HAPAX_ERR_UNAVAILABLE || op->error == HAPAX_ERR_INDETERMINATE);
        w->errors++;
    } else {
        tell(w, op, client->n);
    }
    if (op->verdict == HAPAX_CLAIMED)
        submit(w, client, complete_of(client->n, 1, body_of(client->body, client->n)));
    else
        begin(w, client);
}

static void work(struct world *w, uint64_t until)
{
    struct pollfd poll_fd = {.fd = hapax__lane_fd(w->lane), .events = POLLIN};

    if (w->waiting == 0)
        for (unsigned i = 0; i < CLIENTS; i++)
            begin(w, &w->clients[i]);
    while (w->waiting > 0 && (w->next < until || until == NUMBERS)) {
        assert_int_equal(poll(&poll_fd, 1, 60000), 1);
        for (struct hapax__job *job = hapax__lane_reap(w->lane), *next; job; job = next) {
            next = job->next;
            take(w, (struct client *)job);
        }
    }
}

/* Its memory is shared with children. */
static struct world *world_new(struct fixture *f)
{
    struct world *w =
        mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(w != MAP_FAILED);
    w->f = f;
    w->next = 1;
    for (unsigned i = 0; i < CLIENTS; i++)
        w->clients[i].reads = i % 3 == 0;
    return w;
}

static void world_open(struct world *w)
{
    w->waiting = 0;
    pthread_mutex_init(&w->lock, NULL);
    open_store(w->f, "");
    assert_int_equal(hapax__lane_open(&w->lane, w->f->store, 2 * CLIENTS), HAPAX_ERR_NONE);
    w->f->store = NULL;
}

static void world_close(struct world *w)
{
    assert_null(hapax__lane_close(w->lane));
    pthread_mutex_destroy(&w->lock);
}

static void world_free(struct world *w)
{
    munmap(w, sizeof(*w));
}

static uint32_t count_open(struct hapax_store *store)
{
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN, .limit = 7};
    uint32_t count = 0;

    do {
        assert_int_equal(run_one(store, &list), HAPAX_FOUND);
        for (uint32_t i = 1; i < list.count; i++)
            assert_true(memcmp(&list.records[i - 1].id, &list.records[i].id,
                               sizeof(list.records[i].id)) < 0);
        count += list.count;
        list.cursor = list.next_cursor;
    } while (list.more);
    return count;
}

/* All that was told is there, and all that is unfinished is listed. */
static void look_at(struct hapax_store *store, const uint8_t told[NUMBERS])
{
    uint32_t unfinished = 0;

    for (uint64_t n = 1; n < NUMBERS; n++) {
        struct hapax_op op = read_of(n);

        run_one(store, &op);
        assert_true(op.verdict == HAPAX_FOUND || (op.verdict == HAPAX_ABSENT && !told[n]));
        unfinished += op.verdict == HAPAX_FOUND && op.record.state == HAPAX_STATE_STARTED;
        if (told[n] & TOLD_DONE)
            assert_true(is_completed(store, n));
    }
    assert_int_equal(count_open(store), unfinished);
}

/* ---- a failing disk -------------------------------------------------------------------- */

static void meet_faults(struct world *w)
{
    world_open(w);
    for (; w->nth <= 24; w->nth++) {
        int64_t deadline_us = monotonic_us() + INT64_C(60000000);
        uint64_t from = w->next;

        failing_io_arm(w->f->path, w->nth, w->nth % 3 == 0, EIO);
        work(w, from + 60);
        failing_io_disarm();
        w->failed += w->errors;
        do { /* it works again when a whole turn did */
            assert_true(monotonic_us() < deadline_us);
            usleep(1000);
            w->errors = 0;
            w->next = from + 60;
            work(w, from + 60 + CLIENTS);
        } while (w->errors > 0);
    }
    w->next = NUMBERS;
    work(w, NUMBERS);
    world_close(w);
}

/* Whether a child ended by itself. If not, RocksDB ended it: before 9.10, and where it was built
 * with its asserts as Debian 12's is, it does so where a write fails just as a sync begins. */
static bool met_all_faults(struct world *w, FILE *said)
{
    char text[4096];
    size_t len;
    int status;
    pid_t pid;

    assert_int_equal(ftruncate(fileno(said), 0), 0);
    rewind(said);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(said), STDERR_FILENO);
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        meet_faults(w);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    rewind(said); /* the child has moved the place that they share */
    len = fread(text, 1, sizeof(text) - 1, said);
    text[len] = '\0';
    if (!strstr(text, "sync_without_flush_called_"))
        fail_msg("a child ended with %#x: %s", (unsigned)status, text);
    return false;
}

/* Any call of the disk fails, those of a sync among them, while batches are judged behind it: who
 * was told was told the truth, and the store comes back by itself. The first case, as a child must
 * not begin with RocksDB's threads. */
CASE_WITH(a_failed_sync_tells_nothing, make_folder, drop_store)
{
    struct fixture *f = *state;
    struct world *w = world_new(f);
    FILE *said = tmpfile();
    unsigned ends = 0;

    assert_non_null(said);
    for (w->nth = 1; !met_all_faults(w, said); w->nth++)
        assert_true(++ends < 8);
    fclose(said);
    assert_true(w->failed > 0);
    open_store(f, "");
    look_at(f->store, w->told);
    print_message("# %u errors, %u times the process ended\n", w->failed, ends);
    world_free(w);
}

/* ---- a power cut ----------------------------------------------------------------------- */

/* Whatever a power cut leaves, all that was told is in it. */
CASE_WITH(a_power_cut_takes_nothing_that_was_told, make_folder, drop_store) /* promise 20 */
{
    struct fixture *f = *state;
    struct world *w = world_new(f);

    failing_io_watch(f->path, take_image, w);
    world_open(w);
    work(w, NUMBERS);
    assert_int_equal(w->errors, 0);
    world_close(w);
    failing_io_watch(NULL, NULL, NULL);
    assert_int_equal(w->images, IMAGES);
    for (unsigned i = 0; i < w->images; i++) {
        struct fixture image = {0};
        char path[128];

        path_of_image(w, i, "", path);
        assert_true(strlen(path) < sizeof(image.path));
        memcpy(image.path, path, sizeof(image.path));
        open_store(&image, "");
        look_at(image.store, w->told_by[i]);
        close_store(&image);
        remove_tree(image.path);
    }
    open_store(f, "");
    look_at(f->store, w->told);
    world_free(w);
}

struct gate {
    sem_t come, go;
};

/* The first sync stands until it is let go. */
static void wait_for_leave(void *arg)
{
    struct gate *gate = arg;

    sem_post(&gate->come);
    while (sem_wait(&gate->go) != 0) /* EINTR */
        ;
}

/* Waits for n answers, and returns them as one list. */
static struct hapax__job *reap(struct hapax__lane *lane, uint32_t n)
{
    struct pollfd poll_fd = {.fd = hapax__lane_fd(lane), .events = POLLIN};
    struct hapax__job *all = NULL, **end = &all;

    for (uint32_t got = 0; got < n;) {
        assert_int_equal(poll(&poll_fd, 1, 60000), 1);
        for (*end = hapax__lane_reap(lane); *end; end = &(*end)->next)
            got++;
    }
    return all;
}

/* While a completion is synced, who asks for its record waits with it; who asks for others does
 * not. */
CASE_WITH(what_is_shown_waits_for_its_sync, make_store, drop_store)
{
    struct fixture *f = *state;
    struct hapax__job completion = {.op = complete_of(1, 1, hapax_str("done"))}, reads[20], *job;
    struct hapax__lane *lane;
    struct gate gate;

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    assert_int_equal(hapax__lane_open(&lane, f->store, 64), HAPAX_ERR_NONE);
    f->store = NULL;
    sem_init(&gate.come, 0, 0);
    sem_init(&gate.go, 0, 0);
    failing_io_watch(f->path, wait_for_leave, &gate);
    assert_true(hapax__lane_submit(lane, &completion));
    while (sem_wait(&gate.come) != 0)
        ;
    for (unsigned i = 0; i < 20; i++) {
        reads[i] = (struct hapax__job){.op = read_of(i == 0 ? 1 : 2)};
        reads[i].next = i < 19 ? &reads[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, reads));
    for (job = reap(lane, 19); job; job = job->next) {
        assert_true(job != &reads[0] && job != &completion);
        assert_int_equal(job->op.record.state, HAPAX_STATE_STARTED);
    }
    failing_io_watch(NULL, NULL, NULL);
    sem_post(&gate.go);
    for (job = reap(lane, 2); job; job = job->next)
        assert_int_equal(job->op.verdict, job == &completion ? HAPAX_OK : HAPAX_FOUND);
    assert_int_equal(reads[0].op.record.state, HAPAX_STATE_COMPLETED);
    for (unsigned i = 0; i < 20; i++)
        free(reads[i].memory);
    free(completion.memory);
    assert_null(hapax__lane_close(lane));
}

int main(void)
{
    hapax_rocksdb_use();
    return cases_run(NULL, NULL);
}
