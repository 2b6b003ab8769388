/* SPDX-License-Identifier: Apache-2.0 */
#include "play.h"

#include "fds.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SLACK_US (3 * SECOND) /* of a server that hangs up */

struct stop stops[PROCS];
bool play_calm, play_stopping;

static const struct play *now;

unsigned play_rate(bool all, unsigned most)
{
    return all || chance(500) ? (unsigned)between(0, most) : 0;
}

void play_policy(struct hapax_policy *out)
{
    hapax_policy_init(out);
    out->lease_ms = between(100, 1500);
    out->attempts_max = chance(300) ? (uint32_t)between(1, 5) : 0;
    out->on_expired = (enum hapax_on_expired)between(HAPAX_EXPIRED_RERUN, HAPAX_EXPIRED_RECONCILE);
    out->on_failed = (enum hapax_on_failed)(chance(500)   ? 0
                                            : chance(500) ? HAPAX_FAILED_RETRY
                                                          : HAPAX_FAILED_HOLD);
    out->wait_ms = between(0, 1000);
    out->timeout_ms = between(50, 2000);
    out->save_wait_ms = between(0, 2000);
}

void play_kill(int proc, unsigned rate)
{
    if (!chance(rate) || !sim_procs[proc].alive)
        return;
    if (chance(500))
        sim_procs[proc].dies_in = between(1, chance(500) ? 300 : 5000);
    else
        process_kill(proc);
}

static void begin(int proc)
{
    stops[proc] = (struct stop){0};
    now->begin(proc);
}

static void begin_again(void *arg)
{
    int proc = (int)(intptr_t)arg;

    pass_us(between(0, 2 * SECOND));
    if (!play_stopping && !sim_procs[proc].alive)
        begin(proc);
}

void play_over(int proc)
{
    stops[proc].fd = 0;
    if (!play_stopping)
        world_thread(begin_again, (void *)(intptr_t)proc);
}

bool play_stop(int proc)
{
    struct stop *stop = &stops[proc];
    uint64_t one = 1;

    if (!sim_procs[proc].alive || stop->fd == 0 || stop->at_us > 0)
        return false;
    say("        STOP p%d", proc);
    stop->at_us = sim_now_us;
    (void)!write(stop->fd, &one, sizeof(one));
    return true;
}

bool play_stopped(int proc, bool killed)
{
    return !killed && !play_stopping && stops[proc].at_us > 0;
}

bool play_is_told_to_stop(int proc)
{
    return stops[proc].at_us > 0;
}

void play_wait_for_stop(int proc)
{
    struct pollfd stop = {.fd = stops[proc].fd, .events = POLLIN};

    while (poll(&stop, 1, -1) <= 0)
        ;
}

static bool has_served(int server, const struct process *before, int64_t since_us)
{
    const struct process *now_it_is = &sim_procs[server];

    return now_it_is->alive && now_it_is->life == before->life &&
           before->stopped_until_us <= since_us && now_it_is->stopped_us == before->stopped_us &&
           !play_is_told_to_stop(server);
}

/* Takes a byte that it has looked at before. Returns as recv(). */
static ssize_t take_byte(int fd)
{
    uint8_t seen = 0, got = 0;
    ssize_t n = recv(fd, &seen, 1, MSG_PEEK | MSG_DONTWAIT);

    if (n > 0)
        n = recv(fd, &got, 1, 0);
    assert(n <= 0 || got == seen);
    return n;
}

bool play_stranger(bool *came, const char *path, const void *says, size_t size, int64_t patience_us)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    int64_t begun_us = sim_now_us, until_us = begun_us + patience_us + SLACK_US;
    unsigned cuts = sim_sockets.cuts;
    bool served = false;
    ssize_t n = 1;

    *came = false;
    if (fd < 0)
        return false;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
        uint32_t life;
        int server = sockets_peer(fd, &life);
        struct process before = sim_procs[server];

        *came = true;
        say("STRANGER says %zu bytes", size);
        (void)!send(fd, says, size, MSG_NOSIGNAL);
        while (sim_now_us < until_us && !play_is_told_to_stop(process_now()) && n != 0) {
            if (!play_calm) /* it may be let in late */
                until_us = sim_now_us + patience_us + SLACK_US;
            (void)poll(&one, 1, 100);
            n = take_byte(fd);
        }
        served = before.life == life && has_served(server, &before, begun_us);
        if (n != 0 && served && sim_now_us >= until_us)
            violate("a stranger stands still, and nobody hangs up");
    }
    close(fd);
    return n == 0 && served && cuts == sim_sockets.cuts && sim_now_us >= begun_us + patience_us;
}

static void chaos(void *arg)
{
    (void)arg;
    while (!play_calm) {
        pass_us(between(0, 600 * MS));
        if (!play_calm)
            now->happens((int)between(0, now->procs_count - 1));
    }
}

static void watchman(void *arg)
{
    (void)arg;
    for (;;) {
        pass_us(500 * MS);
        for (int p = 0; p < now->procs_count; p++)
            if (sim_procs[p].alive && stops[p].at_us > 0 &&
                sim_now_us > stops[p].at_us + sim_procs[p].stopped_us + now->drain_us)
                violate("p%d was told to stop %lld s ago", p,
                        (long long)((sim_now_us - stops[p].at_us) / SECOND));
        if (now->watch)
            now->watch();
    }
}

static void begin_calm(void)
{
    say("        CALM");
    play_calm = true;
    now->calm();
    for (int p = 0; p < now->procs_count; p++) {
        sim_procs[p].dies_in = sim_procs[p].no_memory = 0;
        if (sim_procs[p].stopped_until_us > sim_now_us)
            sim_procs[p].stopped_until_us = sim_now_us;
    }
}

static void stop_all(void *arg)
{
    (void)arg;
    for (int p = 0; p < now->procs_count; p++)
        (void)play_stop(p);
}

static bool any_alive(void)
{
    bool alive = false;

    for (int p = 0; p < now->procs_count; p++)
        alive |= sim_procs[p].alive;
    return alive;
}

static void end_all(void)
{
    int64_t end_us = sim_now_us + now->drain_us + SECOND;

    play_stopping = true;
    while (!sim_failed && any_alive() && sim_now_us < end_us) {
        world_thread(stop_all, NULL); /* again: one may have begun just now */
        threads_run(sim_now_us + SECOND);
    }
    if (!sim_failed && any_alive())
        violate("a process does not end");
}

void play_run(const struct play *play)
{
    now = play;
    memset(stops, 0, sizeof(stops));
    play_calm = play_stopping = false;
    world_thread(chaos, NULL);
    world_thread(watchman, NULL);
    for (int p = 0; p < play->procs_count; p++)
        begin(p);
    threads_run(play->calm_us);
    begin_calm();
    while (!sim_failed && !play->is_over() && sim_now_us < play->calm_us + play->rest_us)
        threads_run(sim_now_us + SECOND);
    if (!sim_failed && !play->is_over())
        play->not_over();
    if (!sim_failed)
        end_all();
}
