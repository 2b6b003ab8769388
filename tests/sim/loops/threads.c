/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include "inner.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS    128
#define STACK      (128u << 10)
#define MEMORY     ((size_t)96 << 20) /* of one life of a process, at once */
#define PAGE       ((size_t)4 << 10)
#define FILLED     PAGE /* so much of a block is overwritten, and its end */
#define REUSED     ((size_t)1 << 20) /* in one seed of ten, freed memory is given out behind this */
#define REUSES_MAX 64u /* blocks that are looked at then */
#define STILL_MAX  500000u /* calls in STEPS_US, since bytes last went through a socket */
#define STEPS_MAX  5000000u /* all calls in it: long requests in small parts take 500,000 */
#define STEPS_US   (10 * SECOND)
#define CLOCKS_MAX 100000u
#define EPOCH_US   INT64_C(1700000000000000)
#define NEVER      INT64_MAX
#define CHANGES    60 /* 1000ths of calls that give the turn away */
#define ALIGNED(n) (((n) + 15u) & ~(size_t)15u)

struct thread {
    bool used, started, ended;
    int proc;
    int64_t wake_us; /* NEVER: only by who wakes it */
    const void *waits_for; /* a mutex, a condition, a semaphore or a thread */
    struct pollfd *fds; /* or these */
    nfds_t fd_count;
    void *(*run)(void *);
    void *arg;
    ucontext_t first;
    jmp_buf env;
};

/* What stands in the memory of a pthread_mutex_t or a sem_t. */
struct lock {
    int owner; /* a thread's number + 1 */
    uint32_t life;
};

uint64_t sim_random;
int64_t sim_now_us;
bool sim_failed, sim_trace;
char sim_rule[200];
uint64_t sim_hash;
unsigned sim_no_memory;
struct process sim_procs[PROCS + 1];
void (*process_over)(int proc, bool killed);

static struct thread threads[THREADS];
static uint32_t lives[THREADS]; /* which thread of this number it is */
static struct thread *running;
static jmp_buf scheduler;
static uint8_t *stacks;
static int stacks_used; /* since they were cleared */
static uint8_t *memory[PROCS];
static size_t memory_used[PROCS];
static size_t memory_dirty[PROCS]; /* so much of it was used since the program began */
static size_t memory_at[PROCS]; /* where the next freed block is looked for */
static size_t reused_from; /* once so much of it is used, freed blocks are given out again */
static unsigned steps, still, clocks; /* calls; looks at a clock in one turn */
static int64_t steps_since_us;

/* ---- chance, rules ----------------------------------------------------------------------- */

uint64_t draw(void)
{
    uint64_t z = sim_random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t between(int64_t low, int64_t high)
{
    assert(low <= high);
    return low + (int64_t)(draw() % (uint64_t)(high - low + 1));
}

bool chance(unsigned thousandths)
{
    return thousandths > 0 && draw() % 1000 < thousandths;
}

static void put(const char *format, va_list args)
{
    printf("%12.3f ms p%d ", (double)sim_now_us / 1000, process_now());
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
}

void say(const char *format, ...)
{
    va_list args;

    if (!sim_trace)
        return;
    va_start(args, format);
    put(format, args);
    va_end(args);
}

void violate(const char *format, ...)
{
    va_list args;

    if (sim_failed)
        return;
    sim_failed = true;
    va_start(args, format);
    vsnprintf(sim_rule, sizeof(sim_rule), format, args);
    va_end(args);
    say("VIOLATION: %s", sim_rule);
}

/* ---- turns ------------------------------------------------------------------------------- */

int process_now(void)
{
    return running ? running->proc : THE_WORLD;
}

static void give_turn(void)
{
    if (_setjmp(running->env) == 0)
        _longjmp(scheduler, 1);
}

static void wait_until(int64_t wake_us, const void *what)
{
    running->wake_us = wake_us;
    running->waits_for = what;
    give_turn();
    running->waits_for = NULL;
}

static void wake(struct thread *thread)
{
    if (thread->wake_us > sim_now_us)
        thread->wake_us = sim_now_us + between(0, 30);
}

static unsigned wake_all(const void *what, unsigned most)
{
    unsigned n = 0;
    int begin = (int)between(0, THREADS - 1);

    for (int i = 0; i < THREADS && n < most; i++) {
        struct thread *thread = &threads[(begin + i) % THREADS];

        if (!thread->used || thread->ended || thread->waits_for != what)
            continue;
        thread->waits_for = NULL;
        wake(thread);
        n++;
    }
    return n;
}

void pass_us(int64_t us)
{
    wait_until(sim_now_us + us, NULL);
}

void wait_for_fds(struct pollfd *all, nfds_t n, int64_t until_us)
{
    running->fds = all;
    running->fd_count = n;
    wait_until(until_us, NULL);
    running->fds = NULL;
    running->fd_count = 0;
}

static bool polls(const struct thread *thread, int fd)
{
    for (nfds_t i = 0; i < thread->fd_count; i++)
        if (thread->fds[i].fd == fd)
            return true;
    return false;
}

void wake_who_polls(int fd)
{
    for (int i = 0; i < THREADS; i++)
        if (threads[i].used && !threads[i].ended && threads[i].fds && polls(&threads[i], fd))
            wake(&threads[i]);
}

void step(void)
{
    struct process *process;

    if (!running || running->proc == THE_WORLD)
        return;
    process = &sim_procs[running->proc];
    if (sim_now_us - steps_since_us >= STEPS_US) {
        steps = still = 0;
        steps_since_us = sim_now_us;
    }
    if (++steps > STEPS_MAX || ++still > STILL_MAX)
        violate("a loop turns for ever");
    if (process->dies_in > 0 && --process->dies_in == 0) {
        process_kill(running->proc);
        give_turn();
    }
    if (sim_failed || chance(CHANGES))
        pass_us(between(0, 60));
}

void bytes_moved(void)
{
    still = 0;
}

static void thread_main(void)
{
    struct thread *self = running;

    (void)self->run(self->arg);
    self = running;
    self->ended = true;
    (void)wake_all(self, THREADS);
    give_turn();
    abort();
}

static struct thread *new_thread(int proc, void *(*run)(void *), void *arg)
{
    int i = 0;

    while (i < THREADS && threads[i].used)
        i++;
    assert(i < THREADS);
    if (stacks_used <= i)
        stacks_used = i + 1;
    threads[i] = (struct thread){
        .used = true, .proc = proc, .wake_us = sim_now_us + between(0, 50), .run = run, .arg = arg};
    lives[i]++;
    getcontext(&threads[i].first);
    threads[i].first.uc_stack.ss_sp = stacks + (size_t)i * STACK;
    threads[i].first.uc_stack.ss_size = STACK;
    makecontext(&threads[i].first, thread_main, 0);
    return &threads[i];
}

/* A sleep ends with the stop that it came with, though the process may have nothing to do then. */
static void end_sleep(struct process *process)
{
    if (process->sleeps_since_us == 0 || process->stopped_until_us > sim_now_us)
        return;
    process->slept_us += process->stopped_until_us - process->sleeps_since_us;
    process->sleeps_since_us = 0;
}

/* Enters a thread, until it gives its turn away. */
static void enter(struct thread *thread)
{
    end_sleep(&sim_procs[thread->proc]);
    running = thread;
    clocks = 0;
    if (_setjmp(scheduler) == 0) {
        if (thread->started)
            _longjmp(thread->env, 1);
        thread->started = true;
        setcontext(&thread->first);
    }
    running = NULL;
}

static int64_t due_of(const struct thread *thread)
{
    int64_t until_us = sim_procs[thread->proc].stopped_until_us;

    return thread->wake_us < until_us ? until_us : thread->wake_us;
}

void threads_run(int64_t until_us)
{
    while (!sim_failed) {
        struct thread *next = NULL;

        for (int i = 0; i < THREADS; i++)
            if (threads[i].used && !threads[i].ended &&
                (!next || due_of(&threads[i]) < due_of(next)))
                next = &threads[i];
        if (!next || due_of(next) == NEVER || due_of(next) > until_us)
            break;
        if (sim_now_us < due_of(next))
            sim_now_us = due_of(next);
        sim_hash =
            (sim_hash ^ (uint64_t)sim_now_us ^ (uint64_t)(next - threads) << 56 ^ sim_random) *
            UINT64_C(0x100000001b3);
        next->wake_us = NEVER;
        enter(next);
        if (next->ended && next->used && next->proc == THE_WORLD)
            next->used = false;
    }
    if (!sim_failed && sim_now_us < until_us && until_us != NEVER)
        sim_now_us = until_us;
}

/* ---- memory ------------------------------------------------------------------------------ */

/* What stands before each block. */
struct block {
    _Alignas(16) uint32_t size;
    uint32_t whole; /* to the next one */
    bool freed;
};

static struct block *block_at(int proc, size_t at)
{
    return (struct block *)(void *)(memory[proc] + at);
}

/* The whole of a large block would take most of the time. */
static void fill(uint8_t *at, size_t size, int with)
{
    if (size <= 2 * FILLED) {
        memset(at, with, size);
        return;
    }
    memset(at, with, FILLED);
    memset(at + size - FILLED, with, FILLED);
}

/* As fill(), for a new block. What lies between is 0, whatever was there before (dirty: or
 * something was), and no page of it is touched. */
static void renew(uint8_t *at, size_t size, int with, bool dirty)
{
    size_t page = (size_t)((uintptr_t)at % PAGE);
    size_t begin = 2 * PAGE - page, end = (page + size) / PAGE * PAGE - PAGE - page;

    if (size <= 4 * PAGE) {
        memset(at, with, size);
        return;
    }
    memset(at, with, begin);
    if (dirty)
        (void)madvise(at + begin, end - begin, MADV_DONTNEED);
    memset(at + end, with, size - end);
}

static void mark_dirty(int proc)
{
    if (memory_dirty[proc] < memory_used[proc])
        memory_dirty[proc] = memory_used[proc];
}

static void forget_memory(int proc)
{
    mark_dirty(proc);
    memory_used[proc] = memory_at[proc] = 0;
}

/* Joins the freed blocks that follow. */
static void join_freed(int proc, size_t at)
{
    struct block *block = block_at(proc, at), *next;

    while (at + block->whole < memory_used[proc]) {
        next = block_at(proc, at + block->whole);
        if (!next->freed)
            return;
        block->whole += next->whole;
    }
}

/* A freed block, of this many at most: that which was looked at longest ago, so that who frees too
 * early is still found. NULL: none is so large. */
static struct block *freed_block(int proc, size_t whole, unsigned most)
{
    for (size_t passed = 0; passed < memory_used[proc] && most > 0; most--) {
        size_t at = memory_at[proc] < memory_used[proc] ? memory_at[proc] : 0;
        struct block *block = block_at(proc, at);

        if (block->freed)
            join_freed(proc, at);
        passed += block->whole;
        memory_at[proc] = at + block->whole;
        if (!block->freed || block->whole < whole)
            continue;
        if (block->whole > whole) {
            *block_at(proc, at + whole) =
                (struct block){.whole = block->whole - (uint32_t)whole, .freed = true};
            memory_at[proc] = at + whole;
            block->whole = (uint32_t)whole;
        }
        return block;
    }
    return NULL;
}

/* NULL: the process has too much. */
static struct block *new_block(int proc, size_t size, int with)
{
    size_t whole = ALIGNED(size) + sizeof(struct block);
    struct block *block = NULL;

    if (size > MEMORY)
        return NULL;
    if (memory_used[proc] >= reused_from)
        block = freed_block(proc, whole, REUSES_MAX);
    if (!block && memory_used[proc] + whole > MEMORY)
        block = freed_block(proc, whole, UINT_MAX);
    if (block) {
        mark_dirty(proc);
    } else if (memory_used[proc] + whole <= MEMORY) {
        block = block_at(proc, memory_used[proc]);
        memory_used[proc] += whole;
        block->whole = (uint32_t)whole;
    } else {
        return NULL;
    }
    *block = (struct block){.size = (uint32_t)size, .whole = block->whole};
    renew((uint8_t *)(block + 1), ALIGNED(size), with,
          (uint8_t *)block < memory[proc] + memory_dirty[proc]);
    return block;
}

void threads_reset(uint64_t seed)
{
    if (!stacks) {
        stacks = mmap(NULL, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert(stacks != MAP_FAILED);
        for (int i = 0; i < PROCS; i++) {
            memory[i] =
                mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert(memory[i] != MAP_FAILED);
        }
    }
    /* What is read before it was written is 0, as in a process that plays this seed alone. */
    (void)madvise(stacks, (size_t)stacks_used * STACK, MADV_DONTNEED);
    stacks_used = 0;
    for (int i = 0; i < PROCS; i++)
        forget_memory(i);
    memset(threads, 0, sizeof(threads));
    memset(lives, 0, sizeof(lives));
    fds_reset();
    memset(sim_procs, 0, sizeof(sim_procs));
    reused_from = seed % 10 == 0 ? REUSED : MEMORY;
    sim_random = seed * UINT64_C(0xd1342543de82ef95) + 1;
    sim_now_us = 0;
    sim_failed = false;
    sim_hash = 0;
    steps = still = sim_no_memory = 0;
    steps_since_us = 0;
    running = NULL;
}

/* ---- processes --------------------------------------------------------------------------- */

/* Who still reads what a dead process has had is to notice. */
static void spoil(int proc)
{
    for (size_t at = 0; at < memory_used[proc];) {
        struct block *block = block_at(proc, at);

        fill((uint8_t *)(block + 1), block->size, 0xdb);
        at += block->whole;
    }
}

static void forget(int proc, bool killed)
{
    sim_procs[proc].alive = false;
    for (int i = 0; i < THREADS; i++)
        if (threads[i].used && threads[i].proc == proc) {
            threads[i].ended = true;
            threads[i].used = &threads[i] == running;
        }
    fds_forget(proc);
    if (process_over)
        process_over(proc, killed);
    spoil(proc);
}

void process_kill(int proc)
{
    if (!sim_procs[proc].alive)
        return;
    say("KILLED p%d", proc);
    forget(proc, true);
}

void process_stop(int proc, int64_t us)
{
    struct process *process = &sim_procs[proc];

    say("        SIGSTOP p%d for %lld ms", proc, (long long)(us / MS));
    end_sleep(process);
    if (process->stopped_until_us < sim_now_us + us)
        process->stopped_until_us = sim_now_us + us;
    if (process->sleeps_since_us == 0 && chance(300))
        process->sleeps_since_us = sim_now_us;
    process->stopped_us += us;
}

static void *process_main(void *arg)
{
    int proc = running->proc;

    ((void (*)(int))(uintptr_t)arg)(proc);
    for (int i = 0; i < THREADS; i++)
        if (threads[i].used && !threads[i].ended && threads[i].proc == proc &&
            &threads[i] != running)
            violate("a thread is left when its process has ended");
    if (fds_of(proc) > 0)
        violate("a descriptor is left when its process has ended");
    forget(proc, false);
    return NULL;
}

void process_begin(int proc, void (*run)(int proc))
{
    struct process *process = &sim_procs[proc];

    assert(!process->alive);
    *process = (struct process){.life = process->life + 1, .alive = true};
    process->offset_us = between(1000 * SECOND, 2000 * SECOND);
    forget_memory(proc);
    for (int i = 0; i < THREADS; i++) /* one that was killed in its own turn */
        if (threads[i].proc == proc && threads[i].ended)
            threads[i].used = false;
    (void)new_thread(proc, process_main, (void *)(uintptr_t)run);
}

struct world_run {
    void (*run)(void *);
    void *arg;
};

static void *world_main(void *arg)
{
    struct world_run *one = arg, copy = *one;

    free(one);
    copy.run(copy.arg);
    return NULL;
}

void world_thread(void (*run)(void *arg), void *arg)
{
    struct thread *before = running;
    struct world_run *one;

    running = NULL; /* its memory is the test's */
    one = malloc(sizeof(*one));
    assert(one);
    *one = (struct world_run){run, arg};
    running = before;
    (void)new_thread(THE_WORLD, world_main, one);
}

/* ---- the calls --------------------------------------------------------------------------- */

bool ours(void)
{
    return running != NULL;
}

static struct lock *lock_of(void *memory_of_it)
{
    return memory_of_it;
}

static int number(const struct thread *thread)
{
    return (int)(thread - threads);
}

static bool is_held(const struct lock *lock)
{
    const struct thread *owner = &threads[lock->owner > 0 ? lock->owner - 1 : 0];

    return lock->owner > 0 && owner->used && !owner->ended && lives[lock->owner - 1] == lock->life;
}

WRAPPED(int, pthread_mutex_lock, pthread_mutex_t *mutex)
{
    struct lock *lock = lock_of(mutex);

    if (!ours())
        return __real_pthread_mutex_lock(mutex);
    step();
    while (is_held(lock)) {
        assert(lock->owner != number(running) + 1);
        wait_until(NEVER, mutex);
    }
    *lock = (struct lock){number(running) + 1, lives[number(running)]};
    return 0;
}

WRAPPED(int, pthread_mutex_unlock, pthread_mutex_t *mutex)
{
    struct lock *lock = lock_of(mutex);

    if (!ours())
        return __real_pthread_mutex_unlock(mutex);
    assert(lock->owner == number(running) + 1);
    lock->owner = 0;
    (void)wake_all(mutex, THREADS);
    step();
    return 0;
}

WRAPPED(int, pthread_mutex_init, pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    if (!ours())
        return __real_pthread_mutex_init(mutex, attr);
    memset(mutex, 0, sizeof(*mutex));
    return 0;
}

WRAPPED(int, pthread_mutex_destroy, pthread_mutex_t *mutex)
{
    if (!ours())
        return __real_pthread_mutex_destroy(mutex);
    assert(!is_held(lock_of(mutex)));
    return 0;
}

WRAPPED(int, pthread_cond_init, pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    if (!ours())
        return __real_pthread_cond_init(cond, attr);
    memset(cond, 0, sizeof(*cond));
    return 0;
}

WRAPPED(int, pthread_cond_destroy, pthread_cond_t *cond)
{
    return ours() ? 0 : __real_pthread_cond_destroy(cond);
}

/* It may wake without a reason, as POSIX allows. */
WRAPPED(int, pthread_cond_wait, pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    int64_t until_us = chance(5) ? sim_now_us + between(0, 5 * MS) : NEVER;

    assert(ours() && lock_of(mutex)->owner == number(running) + 1);
    lock_of(mutex)->owner = 0;
    (void)wake_all(mutex, THREADS);
    wait_until(until_us, cond);
    return __wrap_pthread_mutex_lock(mutex);
}

WRAPPED(int, pthread_cond_signal, pthread_cond_t *cond)
{
    (void)wake_all(cond, 1);
    return 0;
}

WRAPPED(int, pthread_cond_broadcast, pthread_cond_t *cond)
{
    (void)wake_all(cond, THREADS);
    return 0;
}

WRAPPED(int, sem_init, sem_t *sem, int shared, unsigned value)
{
    if (!ours())
        return __real_sem_init(sem, shared, value);
    memset(sem, 0, sizeof(*sem));
    lock_of(sem)->life = value;
    return 0;
}

WRAPPED(int, sem_destroy, sem_t *sem)
{
    return ours() ? 0 : __real_sem_destroy(sem);
}

WRAPPED(int, sem_post, sem_t *sem)
{
    if (!ours())
        return __real_sem_post(sem);
    lock_of(sem)->life++;
    (void)wake_all(sem, 1);
    step();
    return 0;
}

WRAPPED(int, sem_wait, sem_t *sem)
{
    if (!ours())
        return __real_sem_wait(sem);
    step();
    while (lock_of(sem)->life == 0)
        wait_until(NEVER, sem);
    lock_of(sem)->life--;
    return 0;
}

WRAPPED(int, pthread_create, pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *),
        void *arg)
{
    if (!ours())
        return __real_pthread_create(out, attr, run, arg);
    *out = (pthread_t)(number(new_thread(running->proc, run, arg)) + 1);
    return 0;
}

WRAPPED(int, pthread_join, pthread_t which, void **result)
{
    struct thread *thread;

    if (!ours())
        return __real_pthread_join(which, result);
    thread = &threads[(size_t)which - 1];
    assert(thread->used && thread->proc == running->proc);
    while (!thread->ended)
        wait_until(NEVER, thread);
    thread->used = false;
    return 0;
}

WRAPPED(int, pthread_setname_np, pthread_t thread, const char *name)
{
    return ours() ? 0 : __real_pthread_setname_np(thread, name);
}

WRAPPED(int, pthread_sigmask, int how, const sigset_t *set, sigset_t *old)
{
    return ours() ? 0 : __real_pthread_sigmask(how, set, old);
}

/* ---- clocks, random bytes, memory -------------------------------------------------------- */

WRAPPED(int, clock_gettime, clockid_t id, struct timespec *out)
{
    int64_t us;

    if (!ours())
        return __real_clock_gettime(id, out);
    if (++clocks > CLOCKS_MAX) {
        violate("a loop turns for ever, and waits for nothing");
        give_turn();
    }
    us = sim_now_us + sim_procs[running->proc].offset_us + (id == CLOCK_REALTIME ? EPOCH_US : 0);
    if (id == CLOCK_MONOTONIC)
        us -= sim_procs[running->proc].slept_us;
    out->tv_sec = us / SECOND;
    out->tv_nsec = us % SECOND * 1000;
    return 0;
}

WRAPPED(ssize_t, getrandom, void *to, size_t size, unsigned flags)
{
    uint8_t *bytes = to;

    if (!ours())
        return __real_getrandom(to, size, flags);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)draw();
    return (ssize_t)size;
}

static bool has_memory(void)
{
    return running && running->proc != THE_WORLD;
}

/* Not given out twice before all of it was, so that who frees too early is found. */
static void *allocate(size_t size, int with)
{
    int proc = process_now();
    struct block *block;

    if (chance(sim_procs[proc].no_memory)) {
        sim_no_memory++;
        return NULL;
    }
    block = new_block(proc, size, with);
    if (!block) {
        violate("a process takes more than %zu bytes", MEMORY);
        give_turn();
    }
    return block + 1;
}

WRAPPED(void *, malloc, size_t size)
{
    return has_memory() ? allocate(size, 0xa5) : __real_malloc(size);
}

WRAPPED(void *, calloc, size_t n, size_t size)
{
    return has_memory() ? allocate(n * size, 0) : __real_calloc(n, size);
}

static bool is_in_memory(const uint8_t *at)
{
    for (int i = 0; i < PROCS; i++)
        if (memory[i] && at >= memory[i] && at < memory[i] + MEMORY)
            return true;
    return false;
}

WRAPPED(void, free, void *at)
{
    struct block *block = (struct block *)at - 1;

    if (!is_in_memory(at)) {
        __real_free(at);
        return;
    }
    assert(!block->freed);
    block->freed = true;
    fill(at, block->size, 0xdd);
}

WRAPPED(void *, realloc, void *at, size_t size)
{
    void *to;

    if (!has_memory() || (at && !is_in_memory(at)))
        return __real_realloc(at, size);
    to = __wrap_malloc(size);
    if (to && at) {
        size_t before = ((struct block *)at - 1)->size;

        memcpy(to, at, before < size ? before : size);
        __wrap_free(at);
    }
    return to;
}
