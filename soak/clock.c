/* Moves the wall clock of the processes that preload this: CLOCK_FILE names a file with the seconds
 * to add, which is read once a second. Waits until a time of that clock are moved back, for the
 * kernel knows the true time only. With libfaketime (0.9.10) a rank whose peer is gone waits for ever
 * in gloo (torch 2.15). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MONOTONIC = 2 }; /* glibc's mark of a condition that waits by the monotonic clock */
static long ahead, read_at = -1;

static long seconds_ahead(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    if (__atomic_exchange_n(&read_at, now.tv_sec, __ATOMIC_RELAXED) == now.tv_sec)
        return __atomic_load_n(&ahead, __ATOMIC_RELAXED);
    char text[32] = "0";
    const char *path = getenv("CLOCK_FILE");
    long file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        long size = syscall(SYS_read, file, text, sizeof text - 1);
        text[size > 0 ? size : 0] = 0;
        syscall(SYS_close, file);
    }
    long found = atol(text);
    __atomic_store_n(&ahead, found, __ATOMIC_RELAXED);
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    int failed = syscall(SYS_clock_gettime, clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += seconds_ahead();
    return failed;
}

int gettimeofday(struct timeval *found, void *zone)
{
    int failed = syscall(SYS_gettimeofday, found, zone);
    if (!failed)
        found->tv_sec += seconds_ahead();
    return failed;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) /* on x86-64 there is an older one of the same name */
        next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec true_time = *until;
    if (!(condition->__data.__wrefs & MONOTONIC))
        true_time.tv_sec -= seconds_ahead();
    return next(condition, mutex, &true_time);
}
