/* SPDX-License-Identifier: MIT */
/* zerorun: N daemons and N trainers on this host; see deploy/README.md. */
#include "deploy/zerorun_front.h"
#include "deploy/zerorun_overrides.h"
#include "deploy/zerorun_paths.h"

#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* A program started without them would get our pipes under these numbers. */
static void ensure_standard_files(void)
{
    bool closed = fcntl(STDOUT_FILENO, F_GETFD) < 0;

    for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = dup(fd)) {
        if (fd > STDERR_FILENO) {
            close(fd);
            break;
        }
    }
    if (closed)
        errx(EXIT_SYSTEM,
             "stdout is closed, so what trainers print would be lost: redirect it to a "
             "file, or to /dev/null to do without");
}

/* A config that nobody named, but that the trainer may read: wrong, it is no error of ours. */
static void look_beside(const struct options *options, const char *trainer)
{
    const struct overrides none = { .world = options->world };
    char *beside = trainer != NULL ? paths_beside(trainer) : NULL;

    if (beside != NULL && access(beside, R_OK) == 0 && !overrides_apply(beside, &none, NULL))
        warnx("this would be refused, if the trainer reads it: no --config names another");
    free(beside);
}

/* Sets *out to the config that the trainers are told of; NULL if there is nothing to tell. */
static bool find_config(const struct options *options, const char *trainer,
                        const struct folder *folder, char **out)
{
    const struct overrides overrides = { .texts = options->overrides,
                                         .count = options->override_count,
                                         .world = options->world };
    char *base = NULL;

    *out = NULL;
    if (options->config != NULL) {
        base = realpath(options->config, NULL);
        if (base == NULL)
            warn("cannot read the config %s", options->config);
    } else if (options->override_count > 0) {
        base = paths_default_config(trainer);
    } else {
        look_beside(options, trainer);
        return true;
    }
    if (base == NULL)
        return false;
    if (options->override_count == 0) {
        *out = base;
        return overrides_apply(base, &overrides, NULL);
    }
    char *merged = folder_file(folder, "config.json");
    bool ok = merged != NULL && overrides_apply(base, &overrides, merged);
    free(base);
    *out = merged;
    return ok;
}

/* Descriptors that this process needs for a rank's pipes and socket, and that a daemon needs for
 * each peer; that are kept for a rank's daemon; and what each needs besides. */
enum { FILES_EACH = 6, FILES_KEPT = 16, FILES_BESIDE = 128 };

/* Daemons inherit the limit: too few would show in them one by one, late. */
static bool enough_files(uint32_t world)
{
    rlim_t needed = FILES_BESIDE + (rlim_t)(FILES_EACH + FILES_KEPT) * world;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0) {
        warn("cannot read the limit of open files");
        return false;
    }
    if (files.rlim_max < needed) {
        warnx("%u ranks need %ju open files and %ju are allowed: raise the limit (ulimit -n, or "
              "LimitNOFILE= of a unit)",
              world, (uintmax_t)needed, (uintmax_t)files.rlim_max);
        return false;
    }
    if (files.rlim_cur >= needed)
        return true;
    files.rlim_cur = needed; /* no more: trainers inherit it, and some use select() */
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
        warn("cannot raise the limit of open files");
        return false;
    }
    return true;
}

static int run(const struct options *options, const char *zerod, const char *trainer)
{
    struct folder folder;
    char *config;
    int code = EXIT_USAGE;

    if (!enough_files(options->world))
        return EXIT_SYSTEM;
    if (!folder_open(options->runtime_dir, options->world, &folder))
        return EXIT_FOLDER;
    if (find_config(options, trainer, &folder, &config)) {
        fprintf(stderr, "zerorun: runtime folder %s\n", folder.path);
        struct plan plan = { .options = options,
                             .folder = &folder,
                             .zerod = zerod,
                             .trainer = trainer,
                             .config = config };
        code = front_run(&plan);
    } else {
        folder_remove(&folder);
    }
    free(config);
    folder_deinit(&folder);
    return code;
}

int main(int argc, char **argv)
{
    struct options options;
    int code = EXIT_USAGE;

    ensure_standard_files();
    options_parse(argc, argv, &options);
    char *zerod = paths_zerod(options.zerod);
    char *trainer = options.daemons_only ? NULL : paths_program(options.trainer[0]);
    if (zerod != NULL && (options.daemons_only || trainer != NULL))
        code = run(&options, zerod, trainer);
    free(trainer);
    free(zerod);
    options_deinit(&options);
    return code;
}
