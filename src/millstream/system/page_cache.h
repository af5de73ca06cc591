/* Hints to the page cache, and what it holds. On systems other than Linux there are no hints. */
#ifndef MILLSTREAM_PAGE_CACHE_H
#define MILLSTREAM_PAGE_CACHE_H

#include <stdint.h>

#ifdef __linux__
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

/* Turn off the system's read-ahead for a file. */
static inline void millstream_expect_random_reads(int descriptor) {
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
}

/* Ask the system to fetch bytes that will be read soon. */
static inline void millstream_announce(int descriptor, int64_t offset, int64_t size) {
    posix_fadvise(descriptor, offset, size, POSIX_FADV_WILLNEED);
}

/* Whether a byte can be read without waiting for the disk; false if the system cannot tell.
 *
 * glibc has preadv2 only since 2.26, and wheels are for 2.17. The system call takes the offset in
 * two halves, of which 64-bit systems ignore the second.
 */
static inline int millstream_is_cached(int descriptor, int64_t offset) {
    char byte;
    struct iovec buffer = {&byte, 1};
    return syscall(SYS_preadv2, descriptor, &buffer, 1L, (long)offset, 0L, RWF_NOWAIT) == 1;
}

/* Let the system read a file far ahead. */
static inline void millstream_expect_sequential_reads(int descriptor) {
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
}

/* Read bytes into the page cache and no further: `nowhere` is /dev/null, to which nothing is copied.
   Returns how many, 0 or less if that fails. */
static inline int64_t millstream_read_to_nowhere(int source, int nowhere, int64_t offset, int64_t size) {
    off_t from = offset;
    return sendfile(nowhere, source, &from, size);
}
#else
static inline void millstream_expect_sequential_reads(int descriptor) { (void)descriptor; }
static inline int64_t millstream_read_to_nowhere(int source, int nowhere, int64_t offset, int64_t size) {
    (void)source, (void)nowhere, (void)offset, (void)size;
    return -1;
}
static inline void millstream_expect_random_reads(int descriptor) { (void)descriptor; }
static inline void millstream_announce(int descriptor, int64_t offset, int64_t size) {
    (void)descriptor, (void)offset, (void)size;
}
/* True, so that nothing is announced in vain. */
static inline int millstream_is_cached(int descriptor, int64_t offset) {
    (void)descriptor, (void)offset;
    return 1;
}
#endif

#endif
