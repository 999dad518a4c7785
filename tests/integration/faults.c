/* SPDX-License-Identifier: MIT */
/* faults: preloaded, makes the n-th call that a save depends on go wrong.
 *
 *   FAULT_AT=n           of all wrapped calls together, from 1
 *   FAULT_CALL=name      of that call alone; pread, and fcntl to lock, count only so
 *   FAULT_PATH=text      of open and openat, only of a path that ends so
 *   FAULT_KIND           a number: that errno; "short": half of it is done;
 *                        "kill": the process dies before it; "killed": after it;
 *                        "stop": it is stopped before it
 *   FAULT_MS=n           every call of that name takes so much longer
 *   FAULT_URING=0        there is no io_uring
 *
 * "fault: <call>" on stderr says that it struck. A completion of io_uring counts as a call.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { PAGE = 4096 };

static _Atomic long calls;

/* Is it this call's turn? */
static bool strikes(const char *call)
{
    const char *at = getenv("FAULT_AT"), *only = getenv("FAULT_CALL");
    const char *slow = getenv("FAULT_MS");
    char text[64];

    if (slow != NULL && only != NULL && strcmp(only, call) == 0)
        usleep((useconds_t)strtol(slow, NULL, 10) * 1000);
    if (at == NULL || (only != NULL && strcmp(only, call) != 0) ||
        atomic_fetch_add(&calls, 1) + 1 != strtol(at, NULL, 10))
        return false;
    int bytes = snprintf(text, sizeof text, "fault: %s\n", call);
    syscall(SYS_write, STDERR_FILENO, text, bytes);
    return true;
}

/* The same of a call that opens. */
static bool strikes_at(const char *call, const char *path)
{
    const char *only = getenv("FAULT_PATH");
    size_t bytes = strlen(path), last = only != NULL ? strlen(only) : 0;

    return last <= bytes && (only == NULL || strcmp(path + bytes - last, only) == 0) &&
           strikes(call);
}

static bool kind_is(const char *kind)
{
    const char *given = getenv("FAULT_KIND");
    return given != NULL && strcmp(given, kind) == 0;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
}

/* The errno to fail with; 0: the call is made. */
static int error_of(void)
{
    const char *given = getenv("FAULT_KIND");

    if (kind_is("kill"))
        die();
    if (kind_is("stop"))
        syscall(SYS_kill, getpid(), SIGSTOP);
    return given == NULL ? 0 : (int)strtol(given, NULL, 10);
}

#define REAL(name) ((__typeof__(&(name)))(uintptr_t)dlsym(RTLD_NEXT, #name))

/* A call that fails or is made; what follows it may be death. */
#define WRAP(name, parameters, call)         \
    EXPORT int name parameters               \
    {                                        \
        bool strike = strikes(#name);        \
        int error = strike ? error_of() : 0; \
        if (error != 0) {                    \
            errno = error;                   \
            return -1;                       \
        }                                    \
        int result = (call);                 \
        if (strike && kind_is("killed"))     \
            die();                           \
        return result;                       \
    }

WRAP(mkdir, (const char *path, mode_t mode), REAL(mkdir)(path, mode))
WRAP(fsync, (int fd), REAL(fsync)(fd))
WRAP(fallocate, (int fd, int mode, off_t offset, off_t bytes),
     REAL(fallocate)(fd, mode, offset, bytes))
WRAP(renameat, (int a, const char *from, int b, const char *to), REAL(renameat)(a, from, b, to))
WRAP(renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     REAL(renameat2)(a, from, b, to, flags))
WRAP(unlinkat, (int dir, const char *path, int flags), REAL(unlinkat)(dir, path, flags))
WRAP(flock, (int fd, int what), REAL(flock)(fd, what))

/* Of fcntl, what takes a lock. */
EXPORT int fcntl(int fd, int what, ...)
{
    bool strike = what == F_OFD_SETLK && getenv("FAULT_CALL") != NULL && strikes("fcntl");
    int error = strike ? error_of() : 0;
    va_list args;

    va_start(args, what);
    void *argument = va_arg(args, void *);
    va_end(args);
    if (error != 0) {
        errno = error;
        return -1;
    }
    return REAL(fcntl)(fd, what, argument);
}

/* A close that fails has closed all the same. */
EXPORT int close(int fd)
{
    bool strike = strikes("close");
    int error = strike ? error_of() : 0, result = REAL(close)(fd);

    if (strike && kind_is("killed"))
        die();
    if (error != 0) {
        errno = error;
        return -1;
    }
    return result;
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    bool strike = strikes_at("openat", path);
    int error = strike ? error_of() : 0;
    va_list args;

    va_start(args, flags);
    mode_t mode = va_arg(args, mode_t);
    va_end(args);
    if (error != 0) {
        errno = error;
        return -1;
    }
    int result = REAL(openat)(dir, path, flags, mode);
    if (strike && kind_is("killed"))
        die();
    return result;
}

EXPORT int open(const char *path, int flags, ...)
{
    bool strike = strikes_at("open", path);
    int error = strike ? error_of() : 0;
    va_list args;

    va_start(args, flags);
    mode_t mode = va_arg(args, mode_t);
    va_end(args);
    if (error != 0) {
        errno = error;
        return -1;
    }
    int result = REAL(open)(path, flags, mode);
    if (strike && kind_is("killed"))
        die();
    return result;
}

EXPORT ssize_t write(int fd, const void *from, size_t bytes)
{
    bool strike = strikes("write");
    int error = strike ? error_of() : 0;

    if (error != 0) {
        errno = error;
        return -1;
    }
    if (strike && (kind_is("short") || kind_is("killed")) && bytes > 1)
        bytes /= 2;
    ssize_t result = REAL(write)(fd, from, bytes);
    if (strike && kind_is("killed"))
        die();
    return result;
}

EXPORT ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    bool strike = getenv("FAULT_CALL") != NULL && strikes("pread");
    int error = strike ? error_of() : 0;

    if (error != 0) {
        errno = error;
        return -1;
    }
    return REAL(pread)(fd, to, bytes, offset);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset)
{
    bool strike = strikes("pwritev");
    int error = strike ? error_of() : 0;

    if (error != 0) {
        errno = error;
        return -1;
    }
    const struct iovec page = { pieces[0].iov_base, PAGE };
    if (strike && (kind_is("short") || kind_is("killed")))
        pieces = &page, count = 1;
    ssize_t result = REAL(pwritev)(fd, pieces, count, offset);
    if (strike && kind_is("killed"))
        die();
    return result;
}

/* ---- io_uring ---- */

EXPORT int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    const char *have = getenv("FAULT_URING");

    if (have != NULL && strcmp(have, "0") == 0)
        return -EPERM;
    return REAL(io_uring_queue_init)(entries, ring, flags);
}

/* What is about to be submitted writes one page, and that is its result. */
static void shorten(struct io_uring *ring)
{
    static struct iovec page;

    if (ring->sq.sqe_head == ring->sq.sqe_tail || !strikes("completion"))
        return;
    struct io_uring_sqe *sqe = &ring->sq.sqes[ring->sq.sqe_head & *ring->sq.kring_mask];
    const struct iovec *pieces = (const struct iovec *)(uintptr_t)sqe->addr;
    page = (struct iovec){ pieces[0].iov_base, PAGE };
    sqe->addr = (uintptr_t)&page;
    sqe->len = 1;
}

/* The completion that is looked at next gets another result. */
EXPORT int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait)
{
    if (kind_is("short"))
        shorten(ring);
    int result = REAL(io_uring_submit_and_wait)(ring, wait);
    unsigned head = *ring->cq.khead;

    if (result < 0 || kind_is("short") || head == atomic_load((_Atomic unsigned *)ring->cq.ktail) ||
        !strikes("completion"))
        return result;
    int error = error_of();
    if (kind_is("killed"))
        die();
    ring->cq.cqes[head & *ring->cq.kring_mask].res = -error;
    return result;
}
