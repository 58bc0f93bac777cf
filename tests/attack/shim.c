/* Fails, shortens or dies at one system call on the files of one folder; loaded before libc, idle until armed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, ONCE, ALWAYS, SHORT, DIE_BEFORE, DIE_AFTER };
static char folder[4096];
static int mode = -1, error_number;
static long wanted, seen, log_first, log_last;
static int on_log;

void attack_arm(const char *path, long call, int how, int error) {
    snprintf(folder, sizeof folder, "%s", path);
    seen = 0, log_first = log_last = -1, wanted = call, error_number = error, mode = how;
}
long attack_seen(void) { return seen; }
/* First and last call on SQLite's log, where a COMMIT is. */
long attack_log_first(void) { return log_first; }
long attack_log_last(void) { return log_last; }

static int inside(const char *path) {
    size_t n = strlen(path);
    on_log = n > 4 && strcmp(path + n - 4, "-wal") == 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int of_handle(int handle) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return inside(path);
}

static int of_path(int at, const char *path) {
    if (path[0] == '/') return inside(path);
    return at == AT_FDCWD ? 0 : of_handle(at);
}

/* 0: go on; 1: fail; 2: half of it; 3: do it, then die */
static int hit(const char *name) {
    if (mode < 0) return 0;
    long now = seen++;
    if (on_log) log_last = now, log_first = log_first < 0 ? now : log_first;
    if (mode == COUNT) return 0;
    if (now == wanted || (mode == ALWAYS && now > wanted) || (mode == SHORT && now == wanted + 1)) {
        if (mode == DIE_BEFORE) kill(getpid(), SIGKILL);
        if (mode == DIE_AFTER) return 3;
        if (mode == SHORT && now == wanted && strstr(name, "write")) return 2;
        errno = error_number;
        return 1;
    }
    return 0;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define END(what) do { if (h == 3) { (void)!(what); kill(getpid(), SIGKILL); } return what; } while (0)

ssize_t write(int f, const void *b, size_t n) {
    REAL(write);
    int h = mode >= 0 && of_handle(f) ? hit("write") : 0;
    if (h == 1) return -1;
    if (h == 2) n = n > 1 ? n / 2 : n;
    END(real(f, b, n));
}
#define PWRITE(name, off) ssize_t name(int f, const void *b, size_t n, off o) { \
    REAL(name); \
    int h = mode >= 0 && of_handle(f) ? hit(#name) : 0; \
    if (h == 1) return -1; \
    if (h == 2) n = n > 1 ? n / 2 : n; \
    END(real(f, b, n, o)); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define ON_HANDLE(name, given, passed) int name given { \
    REAL(name); \
    int h = mode >= 0 && of_handle(f) ? hit(#name) : 0; \
    if (h == 1 || h == 2) return -1; \
    END(real passed); }
#define ON_SYNC(name) int name(int f) { \
    REAL(name); \
    int h = mode >= 0 && of_handle(f) ? hit(#name) : 0; \
    if (h == 1 || h == 2) return -1; \
    if (mode == COUNT) return 0; \
    END(real(f)); }
ON_SYNC(fsync)
ON_SYNC(fdatasync)
ON_HANDLE(ftruncate, (int f, off_t n), (f, n))
ON_HANDLE(ftruncate64, (int f, off64_t n), (f, n))
ON_HANDLE(fchmod, (int f, mode_t m), (f, m))
ON_HANDLE(fallocate, (int f, int m, off_t o, off_t n), (f, m, o, n))
ON_HANDLE(fallocate64, (int f, int m, off64_t o, off64_t n), (f, m, o, n))

#define ON_PATH(name, given, passed, at, path) int name given { \
    REAL(name); \
    int h = mode >= 0 && of_path(at, path) ? hit(#name) : 0; \
    if (h == 1 || h == 2) return -1; \
    END(real passed); }
ON_PATH(rename, (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_PATH(renameat, (int x, const char *a, int y, const char *b), (x, a, y, b), y, b)
ON_PATH(renameat2, (int x, const char *a, int y, const char *b, unsigned g), (x, a, y, b, g), y, b)
ON_PATH(link, (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_PATH(unlink, (const char *a), (a), AT_FDCWD, a)
ON_PATH(unlinkat, (int x, const char *a, int g), (x, a, g), x, a)

/* Opening matters to a writer where it may create or write. */
#define OPEN(name) int name(const char *path, int flags, ...) { \
    REAL(name); \
    mode_t m = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); m = va_arg(a, mode_t); va_end(a); } \
    int h = mode >= 0 && (flags & (O_WRONLY | O_RDWR | O_CREAT)) && of_path(AT_FDCWD, path) ? hit(#name) : 0; \
    if (h == 1 || h == 2) return -1; \
    END(real(path, flags, m)); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    REAL(name); \
    mode_t m = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); m = va_arg(a, mode_t); va_end(a); } \
    int h = mode >= 0 && (flags & (O_WRONLY | O_RDWR | O_CREAT)) && of_path(at, path) ? hit(#name) : 0; \
    if (h == 1 || h == 2) return -1; \
    END(real(at, path, flags, m)); }
OPENAT(openat)
OPENAT(openat64)
