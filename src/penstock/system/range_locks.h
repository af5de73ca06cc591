/* Locks on ranges of files, which end with the open file that holds them, and holes in files. */
#ifndef PENSTOCK_RANGE_LOCKS_H
#define PENSTOCK_RANGE_LOCKS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Wait for a range, alone among all threads and processes that open the file themselves. On systems
 * without such locks, the range is the whole file. Returns 0, or an error number. */
static inline int penstock_lock_range(int descriptor, int64_t start, int64_t size) {
    int failed;
#if defined(__linux__)
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = size};
    do {
        failed = fcntl(descriptor, 38 /* F_OFD_SETLKW */, &range);
    } while (failed < 0 && errno == EINTR);
    if (failed == 0 || errno != EINVAL)
        return failed ? errno : 0;
#endif
    (void)start, (void)size;
    do {
        failed = flock(descriptor, LOCK_EX);
    } while (failed < 0 && errno == EINTR);
    return failed ? errno : 0;
}

/* Give the space of bytes back to the file system; they read as zeros then. */
static inline int penstock_punch_hole(int descriptor, int64_t start, int64_t size) {
#if defined(__linux__)
    int keep_size_and_punch = 3;
    if (syscall(SYS_fallocate, descriptor, keep_size_and_punch, start, size) == 0 || errno == EOPNOTSUPP)
        return 0;
    return errno;
#else
    (void)descriptor, (void)start, (void)size;
    return 0;
#endif
}

#endif
