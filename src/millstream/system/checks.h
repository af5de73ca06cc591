/* What Cython cannot say: checks of the debug build, and atomics. */
#ifndef MILLSTREAM_CHECKS_H
#define MILLSTREAM_CHECKS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* In a debug build a kernel that breaks its promise ends the process; in others it costs nothing. */
#ifdef MILLSTREAM_DEBUG
#define check(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)
#else
#define check(condition) ((void)0)
#endif

/* A flag that one thread sets and another looks at. */
static inline int millstream_is_set(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void millstream_set(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }

/* A lock that nobody waits for. */
static inline int millstream_try_lock(int *lock) { return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); }
static inline void millstream_unlock(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

/* A number in a file that other processes may write. */
static inline uint64_t millstream_load_entry(const uint64_t *entry) { return __atomic_load_n(entry, __ATOMIC_ACQUIRE); }

#endif
