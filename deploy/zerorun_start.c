/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_start.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Variables by which systemd speaks to zerorun alone. */
static void forget_systemd(struct environment *environment)
{
    static const char *const names[] = { "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                                         "LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES",
                                         "JOURNAL_STREAM" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        environment_unset(environment, names[i]);
}

/* `fds` has room for all. */
static void pass_kept(const struct holder *holder, int *fds, struct environment *environment)
{
    char *names = NULL;
    size_t bytes;
    FILE *to = open_memstream(&names, &bytes);

    for (size_t i = 0; to != NULL && i < holder->count; i++) {
        fds[i] = holder->kept[i].fd;
        fprintf(to, "%s%s", i > 0 ? ":" : "", holder->kept[i].name);
    }
    if (to == NULL || ferror(to) || fclose(to) != 0)
        environment->failed = true;
    else if (holder->count > 0)
        environment_pass(environment, fds, holder->count, names);
    free(names);
}

bool start_daemon(const struct plan *plan, struct child *daemon, const struct holder *holder,
                  struct output *output)
{
    const char *path = plan->folder->path;
    uint32_t rank = daemon->rank;
    char rank_text[16], world_text[16];
    char restore[] = "--restore", weights_only[] = "--weights-only";
    int fds[HOLDER_FDS];
    struct environment environment;

    snprintf(rank_text, sizeof rank_text, "%u", rank);
    snprintf(world_text, sizeof world_text, "%u", plan->options->world);
    char *argv[11] = { (char[]){ "zerod" },   (char[]){ "--rank" }, rank_text,
                       (char[]){ "--world" }, world_text,           (char[]){ "--runtime-dir" },
                       plan->folder->path };
    size_t words = 7;
    if (plan->options->restore != NULL) {
        argv[words++] = restore;
        argv[words++] = plan->options->restore;
    }
    if (plan->options->weights_only)
        argv[words++] = weights_only;
    environment_init(&environment);
    forget_systemd(&environment);
    environment_set(&environment, "ZERO_RUNTIME_DIR=%s", path);
    environment_set(&environment, "ZEROD_PROGRAM=%s", plan->zerod); /* for an upgrade */
    environment_set(&environment, "NOTIFY_SOCKET=%s/rank-%u.notify", path, rank);
    /* Its lines carry its name already, if we put one before them. */
    environment_set(&environment, "ZERO_LOG_NAMED=%d", plan->options->prefix);
    pass_kept(holder, fds, &environment);
    bool ok = child_start(daemon, output, plan->zerod, argv, &environment);
    environment_deinit(&environment);
    return ok;
}

/* Trainers are told to use one OpenMP thread each: several share the host, and the user did not say
 * otherwise. */
static bool limits_threads(const struct plan *plan)
{
    return plan->options->world > 1 && getenv("OMP_NUM_THREADS") == NULL;
}

static void set_trainer_environment(const struct plan *plan, const struct child *trainer,
                                    const struct output *output, struct environment *environment)
{
    uint32_t world = plan->options->world, rank = trainer->rank;

    forget_systemd(environment);
    environment_set(environment, "RANK=%u", rank);
    environment_set(environment, "LOCAL_RANK=%u", rank);
    environment_set(environment, "WORLD_SIZE=%u", world);
    environment_set(environment, "LOCAL_WORLD_SIZE=%u", world);
    environment_set(environment, "MASTER_ADDR=127.0.0.1");
    environment_set(environment, "MASTER_PORT=%u", plan->master_port);
    environment_set(environment, "RESTART_COUNT=%u", trainer->restarts);
    environment_set(environment, "ZERO_SOCKET=%s/rank-%u.sock", plan->folder->path, rank);
    environment_set(environment, "ZERO_RUNTIME_DIR=%s", plan->folder->path);
    if (plan->config != NULL)
        environment_set(environment, "ZERO_CONFIG=%s", plan->config);
    else
        environment_unset(environment, "ZERO_CONFIG");
    if (limits_threads(plan))
        environment_set(environment, "OMP_NUM_THREADS=1");
    /* Its own stderr is a pipe; this tells it that a progress line would be seen. */
    if (output->sinks[SINK_STDERR].terminal)
        environment_set(environment, "ZERO_TERMINAL=1");
    else
        environment_unset(environment, "ZERO_TERMINAL");
}

bool start_trainer(const struct plan *plan, struct child *trainer, struct output *output)
{
    struct environment environment;

    environment_init(&environment);
    set_trainer_environment(plan, trainer, output, &environment);
    bool ok = child_start(trainer, output, plan->trainer, plan->options->trainer, &environment);
    environment_deinit(&environment);
    return ok;
}

/* A TCP port that is free now; 0 and errno if there is none. */
static uint16_t free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

bool start_trainers(struct plan *plan, struct child *trainers, struct output *output)
{
    bool ok = true;

    if (limits_threads(plan))
        output_say(output, "OMP_NUM_THREADS is not set: trainers get 1");
    plan->master_port = free_port();
    if (plan->master_port == 0) {
        output_say(output, "no free port for MASTER_PORT: %s", strerror(errno));
        return false;
    }
    for (uint32_t r = 0; ok && r < plan->options->world; r++)
        ok = start_trainer(plan, &trainers[r], output);
    return ok;
}

void start_say_how(const struct plan *plan, struct output *output)
{
    uint32_t world = plan->options->world;
    const char *path = plan->folder->path;

    output_say(output,
               "the daemons are ready; start the trainer of each rank with these variables");
    for (uint32_t r = 0; r < world; r++)
        output_print(output,
                     "RANK=%u LOCAL_RANK=%u WORLD_SIZE=%u LOCAL_WORLD_SIZE=%u "
                     "ZERO_SOCKET=%s/rank-%u.sock ZERO_RUNTIME_DIR=%s%s%s\n",
                     r, r, world, world, path, r, path, plan->config != NULL ? " ZERO_CONFIG=" : "",
                     plan->config != NULL ? plan->config : "");
}
