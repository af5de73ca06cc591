/* Locks on ranges of files, which end with the open file that holds them, and holes in files. */
#ifndef MILLSTREAM_RANGE_LOCKS_H
#define MILLSTREAM_RANGE_LOCKS_H

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
static inline int millstream_lock_range(int descriptor, int64_t start, int64_t size) {
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

/* Lock a range from its start on as far as nobody else holds it, and return where that ends; -1 with
 * errno on failure. If its start is held, `held_stop` is where the range may be free again. Systems
 * without such locks have no holders. */
static inline int64_t millstream_lock_free_range(
    int descriptor, int64_t start, int64_t stop, int64_t *held_stop) {
#if defined(__linux__)
    while (1) {
        struct flock range = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = stop - start};
        struct flock held = range;
        if (fcntl(descriptor, 37 /* F_OFD_SETLK */, &range) == 0 || errno == EINVAL)
            return stop;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return -1;
        if (fcntl(descriptor, 36 /* F_OFD_GETLK */, &held))
            return -1;
        if (held.l_type == F_UNLCK)
            continue; /* released just now */
        if (held.l_start > start) {
            stop = held.l_start;
            continue;
        }
        *held_stop = held.l_start + held.l_len;
        return start;
    }
#endif
    (void)descriptor, (void)start, (void)held_stop;
    return stop;
}

/* Give the space of bytes back to the file system; they read as zeros then. */
static inline int millstream_punch_hole(int descriptor, int64_t start, int64_t size) {
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
