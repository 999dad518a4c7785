/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_child.h"

#include "deploy/zerorun_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_NOT_STARTED = 127, PID_DIGITS = 10 };

static const char listen_pid[] = "LISTEN_PID=";

static void add(struct environment *environment, char *var)
{
    if (environment->count + 1 >= environment->capacity) {
        size_t capacity = 2 * environment->capacity + 64;
        char **vars = realloc(environment->vars, capacity * sizeof *vars);
        if (vars == NULL) {
            environment->failed = true;
            free(var);
            return;
        }
        environment->vars = vars;
        environment->capacity = capacity;
    }
    environment->failed = environment->failed || var == NULL;
    environment->vars[environment->count] = var;
    environment->count += var != NULL;
    environment->vars[environment->count] = NULL;
}

void environment_init(struct environment *environment)
{
    memset(environment, 0, sizeof *environment);
    for (char **var = environ; *var != NULL; var++)
        add(environment, strdup(*var));
}

void environment_deinit(struct environment *environment)
{
    for (size_t i = 0; i < environment->count; i++)
        free(environment->vars[i]);
    free(environment->vars);
}

void environment_unset(struct environment *environment, const char *name)
{
    size_t length = strcspn(name, "=");

    for (size_t i = 0; i < environment->count;) {
        char *var = environment->vars[i];
        if (strncmp(var, name, length) != 0 || var[length] != '=') {
            i++;
            continue;
        }
        free(var);
        environment->vars[i] = environment->vars[--environment->count];
        environment->vars[environment->count] = NULL;
    }
}

void environment_set(struct environment *environment, const char *format, ...)
{
    char *var = NULL;
    va_list arguments;

    va_start(arguments, format);
    if (vasprintf(&var, format, arguments) < 0)
        var = NULL;
    va_end(arguments);
    if (var != NULL)
        environment_unset(environment, var);
    add(environment, var);
}

void environment_pass(struct environment *environment, int *fds, size_t count, const char *names)
{
    environment_set(environment, "LISTEN_FDS=%zu", count);
    environment_set(environment, "LISTEN_FDNAMES=%s", names);
    /* Room for what only the child knows. */
    environment_set(environment, "%s%*s", listen_pid, PID_DIGITS, "");
    environment->fds = fds;
    environment->fd_count = count;
}

const char *child_name(enum child_kind kind)
{
    return kind == CHILD_DAEMON ? "zerod" : "trainer";
}

bool child_init(struct child *child, enum child_kind kind, uint32_t rank)
{
    memset(child, 0, sizeof *child);
    child->kind = kind;
    child->rank = rank;
    /* A daemon's stdout is its log as well. */
    enum sink_id sink = kind == CHILD_DAEMON ? SINK_STDERR : SINK_STDOUT;
    bool out = stream_init(&child->out, sink, child_name(kind), rank);
    bool err = stream_init(&child->err, SINK_STDERR, child_name(kind), rank);
    return out && err;
}

void child_deinit(struct child *child)
{
    stream_deinit(&child->out);
    stream_deinit(&child->err);
}

/* As a service gets its sockets and what was kept for it: sd_listen_fds(3). Others may be at the
 * places that an fd is for, so all move up first. */
static bool place_fds(const struct environment *environment)
{
    int first = STDERR_FILENO + 1, count = (int)environment->fd_count;

    for (int i = 0; i < count; i++) {
        environment->fds[i] = fcntl(environment->fds[i], F_DUPFD_CLOEXEC, first + count);
        if (environment->fds[i] < 0)
            return false;
    }
    for (int i = 0; i < count; i++)
        if (dup2(environment->fds[i], first + i) < 0)
            return false;
    for (char **var = environment->vars; *var != NULL; var++)
        if (strncmp(*var, listen_pid, sizeof listen_pid - 1) == 0)
            snprintf(*var + sizeof listen_pid - 1, PID_DIGITS + 1, "%d", (int)getpid());
    return true;
}

/* What the child does between fork and exec; `report` takes errno if there is no exec. */
static _Noreturn void become(const char *program, char *const *argv,
                             const struct environment *environment, const int fds[3], int report)
{
    sigset_t none;

    setpgid(0, 0);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            goto out;
    report = fcntl(report, F_DUPFD_CLOEXEC, STDERR_FILENO + 1 + (int)environment->fd_count);
    if (!place_fds(environment))
        goto out;
    /* A shell without job control starts `zerorun ... &` with SIGINT and SIGQUIT ignored; a child
     * could not be told to end by what is passed on. nohup's SIGHUP stays as the user wants it. */
    static const int defaults[] = { SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTTOU };
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        signal(defaults[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program, argv, environment->vars);
out:;
    int error = errno;
    if (write(report, &error, sizeof error) < 0)
        _exit(EXIT_NOT_STARTED);
    _exit(EXIT_NOT_STARTED);
}

/* Returns the pid, or -1 with errno: the child's if it got as far as to have one. */
static pid_t launch(const char *program, char *const *argv, const struct environment *environment,
                    const int fds[3])
{
    int report[2], error = 0;
    pid_t parent = getpid();

    if (pipe2(report, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        /* The parent may have died before the request: then nobody would send the signal. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(EXIT_NOT_STARTED);
        become(program, argv, environment, fds, report[1]);
    }
    if (pid < 0)
        error = errno;
    close(report[1]);
    ssize_t n = 0;
    while (pid > 0 && (n = read(report[0], &error, sizeof error)) < 0 && errno == EINTR)
        continue;
    close(report[0]);
    if (n == sizeof error)
        waitpid(pid, NULL, 0);
    errno = error;
    return error == 0 ? pid : -1;
}

/* Our end does not block, the child's does. */
static bool open_pipe(int ends[2])
{
    return pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

static void shut(int fd)
{
    if (fd >= 0)
        close(fd);
}

bool child_start(struct child *child, struct output *output, const char *program, char *const *argv,
                 const struct environment *environment)
{
    int out[2] = { -1, -1 }, err[2] = { -1, -1 };
    pid_t pid = -1;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (environment->failed)
        errno = ENOMEM;
    else if (null >= 0 && open_pipe(out) && open_pipe(err))
        pid = launch(program, argv, environment, (const int[]){ null, out[1], err[1] });
    int error = errno;
    shut(null);
    shut(out[1]);
    shut(err[1]);
    if (pid < 0) {
        shut(out[0]);
        shut(err[0]);
        output_say(output, "cannot start %s %u (%s): %s", child_name(child->kind), child->rank,
                   program, strerror(error));
        return false;
    }
    stream_open(&child->out, out[0]);
    stream_open(&child->err, err[0]);
    child->pid = pid;
    child->started_ms = now_ms();
    child->restart_ms = 0;
    child->ready = false;
    child->succeeded = child->told = false;
    return true;
}

void child_signal(const struct child *child, int signal)
{
    if (child->pid > 0)
        kill(-child->pid, signal);
}

void children_signal(const struct child *children, uint32_t count, int signal)
{
    for (uint32_t r = 0; r < count; r++)
        child_signal(&children[r], signal);
}

uint32_t children_running(const struct child *children, uint32_t count)
{
    uint32_t running = 0;

    for (uint32_t r = 0; r < count; r++)
        running += children[r].pid > 0;
    return running;
}

void child_finish(struct child *child, struct output *output)
{
    stream_finish(output, &child->out);
    stream_finish(output, &child->err);
}

int child_reap(struct child *child, struct output *output)
{
    int status = 0;

    /* While it is a zombie its pid cannot name another group. */
    kill(-child->pid, SIGKILL);
    waitpid(child->pid, &status, 0);
    child->pid = 0;
    child->succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    child_finish(child, output);
    return status;
}

void child_say_last_lines(const struct child *child, struct output *output)
{
    const struct stream *streams[] = { &child->out, &child->err };

    for (size_t i = 0; i < 2; i++)
        if (streams[i]->tail_used > 0)
            output_say(output, "the last lines of %s %u:\n%.*s", child_name(child->kind),
                       child->rank, (int)streams[i]->tail_used - 1, streams[i]->tail);
}

void child_describe(int status, char *text, size_t size)
{
    if (WIFEXITED(status))
        snprintf(text, size, "ended with exit code %d", WEXITSTATUS(status));
    else
        snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
}
