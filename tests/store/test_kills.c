/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kills [KILLS] [SEED]: kill -9 of the holder of an embedded store and of its clients, under
 * load (promises 20, 22).
 *
 * A keeper process, eight clients of its socket (half of them so impatient that they give ops up as
 * INDETERMINATE) and two processes that open the path itself run a storm (storm.h). The two may
 * become the holder when the holder dies. About a third of the kills hits the holder of the moment,
 * alone or together with those who would take over; the others hit clients. Each dead process is
 * started again at once. An op with an error is repeated with its token until it has a verdict,
 * within a deadline.
 *
 * What a dead process was in the middle of stands in shared memory when it is dead, so a kill
 * counts as inside an op only if it was. The holder is told from the pid in hapax.lock: asking for
 * the lock itself would be in the way of those who try to get it.
 */
#include "storm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#define KILLS_DEFAULT    150u
#define WINDOW           256u
#define KEY_MS           1 /* a new key comes into the window */
#define PAUSE_MS         120u /* between two kills, at most */
#define HEIR_ONE_IN      10u /* kills of the keeper that have a path process take over */
#define VERDICT_MS       60000 /* an op gets its verdict within this, on a disk that may stall */
#define PROGRESS_MS      150000 /* and a new process its first, opening included */
#define RATE_MIN         20.0 /* acknowledged completions per second */
#define SECONDS_PER_KILL 2 /* the whole may take this, on a machine that is slow */

enum slot { KEEPER, SOCKET_FIRST, PATH_FIRST = SOCKET_FIRST + 8, SLOTS = PATH_FIRST + 2 };

struct world {
    struct storm storm;
    atomic_llong moved_ms[SLOTS]; /* when it last had a verdict, or was started */
    atomic_uint unavailable;
    atomic_uint indeterminate;
    atomic_uint longest_ms; /* from an op's first try to its verdict */
};

struct killer {
    const struct suite *suite;
    struct world *world;
    char path[96];
    pid_t pids[SLOTS];
    uint64_t random;
    uint64_t started; /* processes, so that each has numbers of its own */
    int64_t longest_death_ms; /* from a kill to its end, which is the kernel's alone */
    unsigned kills, holder_kills, holder_inside, keeper_kills, client_kills, client_inside;
};

static unsigned kills_asked = KILLS_DEFAULT;

static const char *path_of(const struct suite *suite)
{
    return strchr(suite->uri, ':') + 1;
}

/* The process that has the store open, or had it open last. */
static pid_t holder_of(const char *path)
{
    char name[128], text[16];
    ssize_t len;
    int fd;

    snprintf(name, sizeof(name), "%s/hapax.lock", path);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    len = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (len <= 0)
        return 0;
    text[len] = '\0';
    return (pid_t)strtol(text, NULL, 10);
}

/* ---- the processes ------------------------------------------------------------------- */

static struct hapax_store *insist_to_open(const char *uri)
{
    int64_t deadline_ms = monotonic_ms() + VERDICT_MS;
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    enum hapax_error error;

    while ((error = hapax_store_open(&store, uri, text)) != HAPAX_ERR_NONE) {
        CHECK(error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_REFUSED, "%s: %s",
              hapax_error_name(error), text);
        CHECK(monotonic_ms() < deadline_ms, "it cannot be opened: %s", text);
        poll(NULL, 0, 5);
    }
    return store;
}

/* Repeats the op with its token until it has a verdict. */
static void insist(const struct storm_client *client, struct hapax_op *op)
{
    struct world *world = (struct world *)client->storm;
    int64_t start_ms = monotonic_ms();
    const struct hapax_op asked = *op;
    unsigned longest_ms = atomic_load(&world->longest_ms);
    unsigned took_ms;

    while (hapax_store_run(client->store, op, 1) != HAPAX_ERR_NONE) {
        CHECK(op->error == HAPAX_ERR_UNAVAILABLE || op->error == HAPAX_ERR_INDETERMINATE,
              "op %d: %s: %s", (int)op->kind, hapax_error_name(op->error),
              hapax_store_text(client->store));
        CHECK(monotonic_ms() < start_ms + VERDICT_MS, "op %d has no verdict: %s", (int)op->kind,
              hapax_store_text(client->store));
        atomic_fetch_add(
            op->error == HAPAX_ERR_UNAVAILABLE ? &world->unavailable : &world->indeterminate, 1);
        *op = asked;
        poll(NULL, 0, 5);
    }
    CHECK(op->verdict != HAPAX_NO_VERDICT && op->now_us > 0, "op %d", (int)op->kind);
    took_ms = (unsigned)(monotonic_ms() - start_ms);
    while (took_ms > longest_ms &&
           !atomic_compare_exchange_weak(&world->longest_ms, &longest_ms, took_ms))
        ;
    atomic_store(&world->moved_ms[client->slot], monotonic_ms());
}

/* Becomes the holder, or waits until it can. */
static void keep(const struct suite *suite)
{
    for (;;) {
        struct hapax_store *store = insist_to_open(suite->uri);

        while (holder_of(path_of(suite)) == getpid())
            pause();
        hapax_store_close(store);
        poll(NULL, 0, 20);
    }
}

static struct storm_client client_of(const struct suite *suite, struct world *world, unsigned slot)
{
    struct storm_client client = {
        .suite = suite, .storm = &world->storm, .slot = slot, .reads_max = 64, .run = insist};
    char uri[sizeof(suite->uri) + 32];

    if (slot >= PATH_FIRST)
        snprintf(uri, sizeof(uri), "%s", suite->uri);
    else
        snprintf(uri, sizeof(uri), "unix:%s/keeper.sock%s", path_of(suite),
                 slot % 2 ? "?timeout=50ms" : "");
    client.store = insist_to_open(uri);
    return client;
}

static void start(struct killer *killer, unsigned slot)
{
    uint64_t random = killer->suite->seed * 1000003 + ++killer->started * SLOTS + slot;
    pid_t parent = getpid();
    pid_t pid;

    atomic_store(&killer->world->moved_ms[slot], monotonic_ms());
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        struct storm_client client;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        if (slot == KEEPER)
            keep(killer->suite);
        client = client_of(killer->suite, killer->world, slot);
        client.random = random;
        storm_run(&client);
        hapax_store_close(client.store);
        fflush(stdout);
        _exit(0);
    }
    killer->pids[slot] = pid;
}

/* ---- the killer ---------------------------------------------------------------------- */

static unsigned find_holder(const struct killer *killer)
{
    pid_t pid = holder_of(killer->path);
    unsigned slot = 0;

    while (slot < SLOTS && killer->pids[slot] != pid)
        slot++;
    return slot;
}

/* No process ended by itself, and every process gets answers. */
static void look_around(const struct killer *killer)
{
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        int64_t moved_ms = atomic_load(&killer->world->moved_ms[slot]);
        int status;

        CHECK(waitpid(killer->pids[slot], &status, WNOHANG) == 0,
              "process %u ended by itself with %d", slot, status);
        CHECK(slot == KEEPER || monotonic_ms() - moved_ms < PROGRESS_MS,
              "process %u hangs: no verdict for %d ms", slot, PROGRESS_MS);
    }
}

static void end(struct killer *killer, unsigned slot)
{
    int64_t start_ms = monotonic_ms();
    int64_t took_ms;
    int status;

    CHECK(kill(killer->pids[slot], SIGKILL) == 0, "kill");
    CHECK(waitpid(killer->pids[slot], &status, 0) == killer->pids[slot], "waitpid");
    CHECK(WIFSIGNALED(status), "process %u had ended with %d", slot, status);
    took_ms = monotonic_ms() - start_ms;
    killer->longest_death_ms =
        took_ms > killer->longest_death_ms ? took_ms : killer->longest_death_ms;
    killer->kills++;
}

static void kill_client(struct killer *killer, unsigned slot)
{
    end(killer, slot);
    killer->client_kills++;
    killer->client_inside += atomic_exchange(&killer->world->storm.in_op[slot], 0) != 0;
}

/* Inside an op: the holder was in one of its own, or a peer was in one op before and after. */
static void kill_holder(struct killer *killer, unsigned holder)
{
    struct storm *storm = &killer->world->storm;
    unsigned before[SLOTS];
    bool inside;

    for (unsigned slot = 0; slot < SLOTS; slot++)
        before[slot] = atomic_load(&storm->in_op[slot]);
    end(killer, holder);
    inside = atomic_load(&storm->in_op[holder]) != 0;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        inside |= before[slot] && atomic_load(&storm->in_op[slot]) == before[slot];
    atomic_store(&storm->in_op[holder], 0);
    killer->holder_kills++;
    killer->keeper_kills += holder == KEEPER;
    killer->holder_inside += inside;
}

static void wait_for_keeper(const struct killer *killer)
{
    int64_t deadline_ms = monotonic_ms() + VERDICT_MS;

    while (holder_of(killer->path) != killer->pids[KEEPER]) {
        CHECK(monotonic_ms() < deadline_ms, "the keeper does not get to hold the store");
        poll(NULL, 0, 1);
    }
}

/* The holder and those who would take over die: so the keeper is the next holder. */
static void kill_together(struct killer *killer, unsigned holder)
{
    for (unsigned slot = PATH_FIRST; slot < SLOTS; slot++)
        if (slot != holder)
            kill_client(killer, slot);
    kill_holder(killer, holder);
    if (holder == KEEPER)
        start(killer, KEEPER);
    wait_for_keeper(killer);
    for (unsigned slot = PATH_FIRST; slot < SLOTS; slot++)
        start(killer, slot);
}

/* The keeper dies and is started again only after another process took over. */
static void kill_and_wait_for_heir(struct killer *killer)
{
    int64_t deadline_ms = monotonic_ms() + VERDICT_MS;

    kill_holder(killer, KEEPER);
    while (find_holder(killer) < PATH_FIRST || find_holder(killer) >= SLOTS) {
        CHECK(monotonic_ms() < deadline_ms, "nobody takes over");
        poll(NULL, 0, 1);
    }
    start(killer, KEEPER);
}

/* One time in two it is the holder's, which makes about a third of all kills. */
static void kill_some(struct killer *killer)
{
    unsigned holder = find_holder(killer);
    unsigned slot = SOCKET_FIRST + (unsigned)(next_random(&killer->random) % (SLOTS - 1));

    if (holder < SLOTS && next_random(&killer->random) % 2) {
        uint64_t how = next_random(&killer->random) % HEIR_ONE_IN;

        if (how % 2) {
            kill_together(killer, holder);
            return;
        }
        if (how == 0 && holder == KEEPER) {
            kill_and_wait_for_heir(killer);
            return;
        }
        kill_holder(killer, holder);
        start(killer, holder);
        return;
    }
    if (slot == holder)
        slot = SOCKET_FIRST;
    kill_client(killer, slot);
    start(killer, slot);
}

/* Moves the window on while all processes work on it. Waits for nothing. */
static void pass_time(struct killer *killer)
{
    struct storm *storm = &killer->world->storm;
    uint64_t keys = next_random(&killer->random) % PAUSE_MS / KEY_MS;
    struct timespec moment = {0, (long)(next_random(&killer->random) % (KEY_MS * 1000000))};

    for (uint64_t i = 0; i < keys; i++) {
        poll(NULL, 0, KEY_MS);
        if (atomic_load(&storm->first) + WINDOW < STORM_KEYS)
            atomic_fetch_add(&storm->first, 1);
    }
    nanosleep(&moment, NULL);
}

/* Checks that each kind of kill, and each of its effects, occurred; few kills may miss one. */
static bool has_hit(const struct killer *killer)
{
    struct storm *storm = &killer->world->storm;

    return killer->holder_inside > 0 && killer->client_inside > 0 && killer->keeper_kills > 0 &&
           killer->keeper_kills < killer->holder_kills && atomic_load(&storm->taken_over) > 0 &&
           atomic_load(&storm->unknown) > 0;
}

static void kill_for_a_while(struct killer *killer)
{
    while (killer->kills < kills_asked ||
           (killer->kills < 4 * kills_asked && killer->kills >= 100 && !has_hit(killer))) {
        pass_time(killer);
        look_around(killer);
        kill_some(killer);
    }
}

static void let_clients_end(struct killer *killer)
{
    atomic_store(&killer->world->storm.over, true);
    for (unsigned slot = SOCKET_FIRST; slot < SLOTS; slot++) {
        int status = wait_for(killer->pids[slot], PROGRESS_MS, false);

        CHECK(status == 0, "process %u ended with %d", slot, status);
    }
    wait_for_keeper(killer);
}

static void look_back(const struct killer *killer, unsigned slot)
{
    struct storm_client client = client_of(killer->suite, killer->world, slot);

    storm_look_back(&client);
    hapax_store_close(client.store);
}

static void tell(const struct killer *killer, double seconds)
{
    struct world *world = killer->world;
    struct storm *storm = &world->storm;
    double rate = atomic_load(&storm->acknowledged) / seconds;

    printf(
        "# %u kills in %.1f s: %u of the holder (%u inside an op; %u hit the keeper, %u one that "
        "had taken over), %u of clients (%u inside an op)\n",
        killer->kills, seconds, killer->holder_kills, killer->holder_inside, killer->keeper_kills,
        killer->holder_kills - killer->keeper_kills, killer->client_kills, killer->client_inside);
    printf(
        "# %u ops, %u completions acknowledged (%.0f/s, at least %.0f/s is asked), %u replayed, "
        "%u taken over, %u times unknown; %u times unavailable, %u indeterminate; the longest wait "
        "for a verdict was %u ms, for a death %" PRId64 " ms\n",
        atomic_load(&storm->ops), atomic_load(&storm->acknowledged), rate, RATE_MIN,
        atomic_load(&storm->replayed), atomic_load(&storm->taken_over),
        atomic_load(&storm->unknown), atomic_load(&world->unavailable),
        atomic_load(&world->indeterminate), atomic_load(&world->longest_ms),
        killer->longest_death_ms);
    /* A short run may meet a disk that stands for as long. */
    CHECK(rate >= (killer->kills < 1000 ? RATE_MIN / 10 : RATE_MIN), "completions per second");
    CHECK(killer->kills < 100 || has_hit(killer),
          "kills missed what they were to hit, or left no claim behind");
}

/* The holder and its clients are killed at any moment: no acknowledged completion is lost or
 * changed, no effect happens twice under hold, every op gets its verdict in time. What they left is
 * looked at, and once more after a last kill of the keeper. */
static void kills_of_holder_and_clients_lose_nothing(const struct suite *suite)
{
    struct killer killer = {.suite = suite, .random = suite->seed};
    int64_t start_ms;

    snprintf(killer.path, sizeof(killer.path), "%s", path_of(suite));
    killer.world = mmap(NULL, sizeof(*killer.world), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(killer.world != MAP_FAILED, "mmap");
    killer.world->storm.window = WINDOW;
    start(&killer, KEEPER);
    wait_for_keeper(&killer);
    for (unsigned slot = SOCKET_FIRST; slot < SLOTS; slot++)
        start(&killer, slot);
    start_ms = monotonic_ms();
    kill_for_a_while(&killer);
    tell(&killer, (double)(monotonic_ms() - start_ms) / 1000);
    let_clients_end(&killer);
    look_back(&killer, SOCKET_FIRST);
    end(&killer, KEEPER);
    start(&killer, KEEPER);
    look_back(&killer, PATH_FIRST);
    end(&killer, KEEPER);
}

static bool read_number(const char *text, uint64_t *out)
{
    char *end_of;

    errno = 0;
    *out = strtoull(text, &end_of, 0);
    return errno == 0 && end_of != text && *end_of == '\0';
}

int main(int argc, char **argv)
{
    const struct test_case test = {.name = "kills_of_holder_and_clients_lose_nothing",
                                   .run = kills_of_holder_and_clients_lose_nothing};
    struct suite suite = {.asked = "rocksdb:@tmp", .scope = "kills"};
    uint64_t kills = KILLS_DEFAULT;
    bool ok;

    suite.seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    if (argc > 3 || (argc > 1 && (!read_number(argv[1], &kills) || kills < 1 || kills > 1000000)) ||
        (argc > 2 && !read_number(argv[2], &suite.seed))) {
        fprintf(stderr, "usage: test_kills [KILLS] [SEED]\n");
        return 2;
    }
    kills_asked = (unsigned)kills;
    suite.seconds = kills_asked * SECONDS_PER_KILL;
    hapax_rocksdb_use();
    signal(SIGPIPE, SIG_IGN);
    printf("# %u kills, seed 0x%" PRIx64 "\n", kills_asked, suite.seed);
    make_folder(&suite);
    ok = run_alone(&suite, &test, -1);
    remove_folder(&suite);
    printf("%s 1 - %s\n1..1\n", ok ? "ok" : "not ok", test.name);
    return !ok;
}
