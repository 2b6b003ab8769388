/* SPDX-License-Identifier: Apache-2.0 */
#include "play.h"

#include <string.h>
#include <unistd.h>

struct stop stops[PROCS];
bool play_calm, play_stopping;

static const struct play *now;

unsigned play_rate(bool all, unsigned most)
{
    return all || chance(500) ? (unsigned)between(0, most) : 0;
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

void play_stop(int proc)
{
    struct stop *stop = &stops[proc];
    uint64_t one = 1;

    if (!sim_procs[proc].alive || stop->fd == 0 || stop->at_us > 0)
        return;
    say("        STOP p%d", proc);
    stop->at_us = sim_now_us;
    (void)!write(stop->fd, &one, sizeof(one));
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
        play_stop(p);
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
