/* SPDX-License-Identifier: MIT */
#include "daemon/upgrade.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/shard/description.h"
#include "daemon/step/journal.h"
#include "proto/ring.h"

enum { LIMIT_MS = 10000, FORMATS_BYTES = 96 };

/* Everything that a successor finds: what the holder keeps, and trainers that were built against
 * this version's library. */
static void write_formats(char out[FORMATS_BYTES])
{
    snprintf(out, FORMATS_BYTES, "model %d, journal %d, board %d, session %d", DESCRIPTION_VERSION,
             JOURNAL_VERSION, BOARD_VERSION, ZERO_PROTOCOL_VERSION);
}

/* Not every program that is called zerod and ends with 0 is one. */
static bool answers(const struct upgrade *upgrade)
{
    char wanted[sizeof UPGRADE_ANSWER + FORMATS_BYTES] = UPGRADE_ANSWER;

    write_formats(wanted + sizeof UPGRADE_ANSWER - 1);
    return strcmp(upgrade->said, wanted) == 0;
}

int upgrade_can_take(const char *formats, uint32_t world)
{
    struct zero_layout *layout = NULL;
    struct zero_config config;
    char own[FORMATS_BYTES];

    write_formats(own);
    if (strcmp(formats, own) != 0) {
        fprintf(stderr, "the state is in the formats '%s', zerod " ZEROD_VERSION " has '%s'\n",
                formats, own);
        return EX_CONFIG;
    }
    if (zero_failed(description_read(STDIN_FILENO, world, &layout, &config)))
        return EX_CONFIG; /* the reason is logged */
    zero_layout_destroy(layout);
    fprintf(stderr, UPGRADE_ANSWER "%s\n", own);
    return 0;
}

const char *upgrade_word(const struct upgrade *upgrade)
{
    static const char *const words[] = { [UPGRADE_IDLE] = "",
                                         [UPGRADE_CHECKING] = "checking",
                                         [UPGRADE_CHECKED] = "checked",
                                         [UPGRADE_REFUSED] = "refused",
                                         [UPGRADE_WAITING] = "waiting" };
    return words[upgrade->state];
}

/* ---- which program ----------------------------------------------------------------------------
 */

void upgrade_find(char out[PATH_MAX])
{
    const char *given = getenv(UPGRADE_PROGRAM);
    char here[PATH_MAX] = "";

    if (given == NULL || given[0] == '\0')
        given = (const char *)getauxval(AT_EXECFN);
    if (given == NULL || (given[0] != '/' && getcwd(here, sizeof here) == NULL))
        given = "/proc/self/exe";
    bool relative = given[0] != '/';
    if (snprintf(out, PATH_MAX, "%s%s%s", relative ? here : "", relative ? "/" : "", given) >=
        PATH_MAX)
        snprintf(out, PATH_MAX, "/proc/self/exe");
}

/* ---- trying --------------------------------------------------------------------------------- */

static void refuse(struct upgrade *upgrade, const char *why)
{
    if (upgrade->state == UPGRADE_REFUSED)
        return; /* the first reason counts */
    upgrade->state = UPGRADE_REFUSED;
    snprintf(upgrade->text, sizeof upgrade->text, "%s: %s", upgrade->program, why);
    LOG_WARNING("not upgraded: %s", upgrade->text);
}

void upgrade_init(struct upgrade *upgrade, uv_loop_t *loop, const char *program)
{
    *upgrade = (struct upgrade){ .program = program, .loop = loop };
    uv_timer_init(loop, &upgrade->limit);
    upgrade->limit.data = upgrade;
    const char *failure = getenv(UPGRADE_FAILED);
    if (failure != NULL) {
        refuse(upgrade, failure);
        unsetenv(UPGRADE_FAILED);
    }
}

static void on_closed(uv_handle_t *handle)
{
    struct upgrade *upgrade = handle->data;

    if (--upgrade->handles == 0 && upgrade->state == UPGRADE_CHECKING) {
        upgrade->state = UPGRADE_CHECKED;
        LOG_INFO("%s can go on from here", upgrade->program);
    }
}

/* Its last words may come after its end: the pipe ends when it has no writer. */
static void on_exit_code(uv_process_t *process, int64_t code, int signal)
{
    struct upgrade *upgrade = process->data;
    char how[sizeof upgrade->said + 64];

    uv_timer_stop(&upgrade->limit);
    for (ssize_t n = 1; n > 0 && upgrade->said_bytes < sizeof upgrade->said - 1;) {
        uv_os_fd_t fd;
        if (uv_fileno((uv_handle_t *)&upgrade->words, &fd) != 0)
            break;
        n = read(fd, upgrade->said + upgrade->said_bytes,
                 sizeof upgrade->said - 1 - upgrade->said_bytes);
        upgrade->said_bytes += n > 0 ? (size_t)n : 0;
    }
    upgrade->said[upgrade->said_bytes] = '\0';
    upgrade->said[strcspn(upgrade->said, "\n")] = '\0';
    const char *said = upgrade->said[0] != '\0' ? upgrade->said : "it said nothing";
    if (signal != 0)
        snprintf(how, sizeof how, "killed by signal %d: %s", signal, said);
    else
        snprintf(how, sizeof how, "exit code %d: %s", (int)code, said);
    if (signal == 0 && code == 0)
        snprintf(how, sizeof how, "it does not answer --can-take as zerod does: %s", said);
    if (!answers(upgrade) || signal != 0 || code != 0)
        refuse(upgrade, how);
    uv_kill(-process->pid, SIGKILL); /* what it has left */
    uv_close((uv_handle_t *)&upgrade->words, on_closed);
    uv_close((uv_handle_t *)process, on_closed);
}

static void on_limit(uv_timer_t *timer)
{
    struct upgrade *upgrade = timer->data;
    char why[64];

    snprintf(why, sizeof why, "it did not answer --can-take in %d s", LIMIT_MS / 1000);
    refuse(upgrade, why);
    uv_kill(-upgrade->process.pid, SIGKILL);
}

/* It is no service yet: it must not speak to the holder, or take what is not for it. */
static char **quiet_environment(void)
{
    static const char *const names[] = { "NOTIFY_SOCKET=", "LISTEN_" };
    size_t count = 0, taken = 0;

    while (environ[count] != NULL)
        count++;
    char **out = calloc(count + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < count; i++) {
        bool drop = false;
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            drop = drop || strncmp(environ[i], names[n], strlen(names[n])) == 0;
        if (!drop)
            out[taken++] = environ[i];
    }
    return out;
}

/* What execve would not take is executed as a shell's by some libraries. What cannot be read here
 * says itself why it does not start. */
static bool is_program(const char *path)
{
    char head[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t bytes = fd < 0 ? -1 : read(fd, head, sizeof head);

    if (fd >= 0)
        close(fd);
    return bytes < 0 || (bytes == sizeof head && memcmp(head, "\177ELF", sizeof head) == 0) ||
           (bytes >= 2 && memcmp(head, "#!", 2) == 0);
}

static int start(struct upgrade *upgrade, int description, uint32_t world)
{
    char formats[FORMATS_BYTES], number[16];
    char *arguments[] = {
        (char[]){ "zerod" }, (char[]){ "--can-take" }, formats, (char[]){ "--world" }, number, NULL
    };
    uv_stdio_container_t stdio[] = {
        { .flags = UV_INHERIT_FD, .data.fd = description },
        { .flags = UV_IGNORE },
        { .flags = (uv_stdio_flags)(UV_CREATE_PIPE | UV_WRITABLE_PIPE),
          .data.stream = (uv_stream_t *)&upgrade->words },
    };
    char **environment = quiet_environment();
    const uv_process_options_t options = { .flags = UV_PROCESS_DETACHED, /* a group to kill */
                                           .exit_cb = on_exit_code,
                                           .file = upgrade->program,
                                           .args = arguments,
                                           .env = environment,
                                           .stdio_count = 3,
                                           .stdio = stdio };

    if (environment == NULL) {
        refuse(upgrade, "no memory");
        return UV_ENOMEM;
    }
    write_formats(formats);
    snprintf(number, sizeof number, "%u", world);
    if (stat(upgrade->program, &upgrade->file) != 0)
        upgrade->file = (struct stat){ .st_size = 0 }; /* that it does not start says why */
    uv_pipe_init(upgrade->loop, &upgrade->words, 0);
    upgrade->words.data = upgrade->process.data = upgrade;
    upgrade->handles = 2;
    upgrade->said_bytes = 0;
    int failed = uv_spawn(upgrade->loop, &upgrade->process, &options);
    free(environment);
    if (failed != 0) {
        refuse(upgrade, uv_strerror(failed));
        uv_close((uv_handle_t *)&upgrade->words, on_closed);
        uv_close((uv_handle_t *)&upgrade->process, on_closed);
    }
    return failed;
}

bool upgrade_check(struct upgrade *upgrade, int description, uint32_t world)
{
    if (upgrade->state == UPGRADE_CHECKING || upgrade->state == UPGRADE_WAITING ||
        upgrade->handles > 0) {
        snprintf(upgrade->text, sizeof upgrade->text,
                 "another upgrade is under way for %.1f s (%s)%s",
                 (double)(clock_ns() - upgrade->since_ns) * 1e-9, upgrade_word(upgrade),
                 upgrade->state == UPGRADE_WAITING
                     ? ": it is made after the next step, or by 'upgrade --now'"
                     : "");
        return false;
    }
    upgrade->since_ns = clock_ns();
    upgrade->state = UPGRADE_CHECKING;
    upgrade->text[0] = '\0';
    zero_status s = notify_can_hand_over(SHARD_LEGACY);
    if (description < 0)
        refuse(upgrade, "there is no model yet: restart the daemon instead");
    else if (zero_failed(s))
        refuse(upgrade, "too few files may be open (ulimit -n): see the log");
    else if (!is_program(upgrade->program))
        refuse(upgrade, "it is no program: exec format error");
    else if (start(upgrade, description, world) == 0)
        uv_timer_start(&upgrade->limit, on_limit, LIMIT_MS, 0);
    return true;
}

bool upgrade_go(struct upgrade *upgrade, bool now)
{
    const char *word = upgrade_word(upgrade);

    if (upgrade->state == UPGRADE_CHECKED || (upgrade->state == UPGRADE_WAITING && now)) {
        upgrade->state = UPGRADE_WAITING;
        return true;
    }
    if (upgrade->state == UPGRADE_WAITING || upgrade->state == UPGRADE_CHECKING)
        snprintf(upgrade->text, sizeof upgrade->text, "another upgrade is under way (%s)", word);
    else if (upgrade->state == UPGRADE_IDLE)
        snprintf(upgrade->text, sizeof upgrade->text,
                 "the program was not tried: ask with check first");
    return false;
}

bool upgrade_is_changed(const struct upgrade *upgrade)
{
    const struct stat *was = &upgrade->file;
    struct stat now;

    return stat(upgrade->program, &now) == 0 &&
           (now.st_dev != was->st_dev || now.st_ino != was->st_ino || now.st_size != was->st_size ||
            now.st_mtim.tv_sec != was->st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != was->st_mtim.tv_nsec);
}

void upgrade_close(struct upgrade *upgrade)
{
    if (upgrade->state == UPGRADE_CHECKING && upgrade->handles > 0) {
        refuse(upgrade, "the daemon is ending");
        uv_kill(-upgrade->process.pid, SIGKILL); /* its handles close by its end */
    }
    uv_close((uv_handle_t *)&upgrade->limit, NULL);
}
