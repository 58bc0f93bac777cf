/* Kills, fails or delays a process at one of its system calls; preloaded, and told where by fault_shim.py.

Only calls of the thread that armed it count, and only while it is armed. The first lock of a mutex after a call
counts, too, where libsqlite3 takes it: between the two copies of the header of the log's index it has a memory
barrier, and no call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { COUNT, KILL, FAIL, FAIL_ON, DELAY };
static int armed, mode, value;
static long owner, count, target, locks;

#define LOCKS_AFTER_A_CALL 1
static char names[1 << 16];
static size_t written;
static uintptr_t sqlite_from, sqlite_to;

static int is_sqlite(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "libsqlite3")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            sqlite_from = info->dlpi_addr + part->p_vaddr;
            sqlite_to = sqlite_from + part->p_memsz;
        }
    }
    return 1;
}

void faults_arm(int mode_, long target_, int value_) {
    if (!sqlite_to) dl_iterate_phdr(is_sqlite, NULL);
    mode = mode_, target = target_, value = value_;
    count = 0, written = 0, owner = syscall(SYS_gettid), armed = 1;
}

long faults_disarm(void) {
    armed = 0;
    return count;
}

const char *faults_names(void) { return names; }

/* 1 if the call is to fail, errno then being set. */
static int hit(const char *name, int can_fail) {
    if (!armed || syscall(SYS_gettid) != owner) return 0;
    long at = count++;
    locks = can_fail < 0 ? locks + 1 : 0;
    size_t length = strlen(name);
    if (mode == COUNT && written + length + 2 < sizeof names) {
        memcpy(names + written, name, length);
        written += length;
        names[written++] = ' ', names[written] = 0;
    }
    if (at == target && mode == KILL) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    if (at == target && mode == DELAY) syscall(SYS_nanosleep, &(struct timespec){0, value * 1000L}, NULL);
    if (can_fail > 0 && ((at == target && mode == FAIL) || (at >= target && mode == FAIL_ON))) {
        errno = value;
        return 1;
    }
    return 0;
}

#define NEXT(type, name) \
    static __typeof__(type) next; \
    if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)
#define WRAP(result, name, parameters, arguments, can_fail, failed) \
    result name parameters { \
        NEXT(result(*) parameters, #name); \
        if (hit(#name, can_fail)) return failed; \
        return next arguments; \
    }
#define WRAP_OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(int (*)(const char *, int, ...), #name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t rights = va_arg(rest, mode_t); \
        va_end(rest); \
        if (hit(#name, 1)) return -1; \
        return next(path, flags, rights); \
    }
#define WRAP_FCNTL(name) \
    int name(int file, int command, ...) { \
        NEXT(int (*)(int, int, ...), #name); \
        va_list rest; \
        va_start(rest, command); \
        void *argument = va_arg(rest, void *); \
        va_end(rest); \
        if (hit(#name, 1)) return -1; \
        return next(file, command, argument); \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)
WRAP(int, close, (int f), (f), 0, -1)
WRAP(ssize_t, read, (int f, void *p, size_t n), (f, p, n), 1, -1)
WRAP(ssize_t, pread, (int f, void *p, size_t n, off_t o), (f, p, n, o), 1, -1)
WRAP(ssize_t, pread64, (int f, void *p, size_t n, off64_t o), (f, p, n, o), 1, -1)
WRAP(ssize_t, write, (int f, const void *p, size_t n), (f, p, n), 1, -1)
WRAP(ssize_t, pwrite, (int f, const void *p, size_t n, off_t o), (f, p, n, o), 1, -1)
WRAP(ssize_t, pwrite64, (int f, const void *p, size_t n, off64_t o), (f, p, n, o), 1, -1)
WRAP(int, fsync, (int f), (f), 1, -1)
WRAP(int, fdatasync, (int f), (f), 1, -1)
WRAP(int, ftruncate, (int f, off_t n), (f, n), 1, -1)
WRAP(int, ftruncate64, (int f, off64_t n), (f, n), 1, -1)
WRAP(int, rename, (const char *a, const char *b), (a, b), 1, -1)
WRAP(int, renameat, (int d, const char *a, int e, const char *b), (d, a, e, b), 1, -1)
WRAP(int, unlink, (const char *a), (a), 1, -1)
WRAP(int, unlinkat, (int d, const char *a, int g), (d, a, g), 1, -1)
WRAP(int, flock, (int f, int how), (f, how), 1, -1)
WRAP(int, access, (const char *a, int how), (a, how), 1, -1)
WRAP(int, stat64, (const char *a, struct stat64 *s), (a, s), 1, -1)
WRAP(int, lstat64, (const char *a, struct stat64 *s), (a, s), 1, -1)
WRAP(int, fstat64, (int f, struct stat64 *s), (f, s), 1, -1)
WRAP(int, fchmod, (int f, mode_t m), (f, m), 1, -1)
WRAP(void *, mmap, (void *a, size_t n, int p, int g, int f, off_t o), (a, n, p, g, f, o), 0, MAP_FAILED)
WRAP(void *, mmap64, (void *a, size_t n, int p, int g, int f, off64_t o), (a, n, p, g, f, o), 0, MAP_FAILED)
WRAP(int, munmap, (void *a, size_t n), (a, n), 0, -1)

/* Where a fault stays, SQLite tries again and sleeps in between, ten seconds in all: not here. */
int usleep(useconds_t span) {
    NEXT(int (*)(useconds_t), "usleep");
    return armed && syscall(SYS_gettid) == owner ? 0 : next(span);
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    NEXT(int (*)(pthread_mutex_t *), "pthread_mutex_lock");
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (armed && locks < LOCKS_AFTER_A_CALL && caller >= sqlite_from && caller < sqlite_to) hit("mutex", -1);
    return next(mutex);
}
