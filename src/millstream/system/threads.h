/* What Cython cannot say of POSIX threads; macOS has no other clock for a condition. */
#ifndef MILLSTREAM_THREADS_H
#define MILLSTREAM_THREADS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#ifdef __APPLE__
#define MILLSTREAM_CLOCK CLOCK_REALTIME
#else
#define MILLSTREAM_CLOCK CLOCK_MONOTONIC
#endif

/* Blocks all signals but those of a crash in this thread; threads started meanwhile inherit that. */
static inline void millstream_leave_signals(sigset_t *before) {
    sigset_t most;
    sigfillset(&most);
    sigdelset(&most, SIGSEGV);
    sigdelset(&most, SIGBUS);
    sigdelset(&most, SIGFPE);
    sigdelset(&most, SIGILL);
    sigdelset(&most, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &most, before);
}

static inline void millstream_take_signals(const sigset_t *before) {
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* Starts a thread that gets no signals, which are left to the main thread. */
static inline int millstream_start_thread(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t before;
    millstream_leave_signals(&before);
    int error = pthread_create(thread, NULL, run, argument);
    millstream_take_signals(&before);
    return error;
}

static inline int millstream_is_this_thread(pthread_t thread) {
    return pthread_equal(thread, pthread_self());
}

/* Makes the calling thread a background thread: names it for `top` and debuggers and, on Linux,
   schedules it so that it does not preempt the thread that wakes it. Measured on two busy cores:
   without that, the consumer was suspended for as long as the next batch took to read. */
static inline void millstream_enter_background(const char *name) {
#ifdef SCHED_BATCH
    struct sched_param parameters = {0};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
#endif
#ifdef __APPLE__
    pthread_setname_np(name);
#else
    pthread_setname_np(pthread_self(), name);
#endif
}

static inline int millstream_init_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, MILLSTREAM_CLOCK);
#endif
    int error = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

/* Waits for a condition, at most for so many milliseconds (less than 1,000). */
static inline void millstream_wait_briefly(pthread_cond_t *condition, pthread_mutex_t *mutex, int milliseconds) {
    struct timespec until;
    clock_gettime(MILLSTREAM_CLOCK, &until);
    until.tv_nsec += milliseconds * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec += 1;
    }
    pthread_cond_timedwait(condition, mutex, &until);
}

static inline double millstream_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

#endif
