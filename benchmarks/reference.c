/* What the hardware can do: rows of 2-byte tokens from a file into one reused batch buffer.

   One thread, no shard lookup, no order, no hand-over: the row starts lie in an array. Every
   function reads `num_rows` rows of `width` tokens; row i goes into row i % batch of `out`.
   A negative answer means that a read failed. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static void widen(const uint16_t *restrict from, int64_t *restrict to, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

int pread_widen(int fd, const int64_t *starts, int64_t num_rows, int64_t width, int64_t batch,
                int64_t *out, uint16_t *scratch) {
  for (int64_t i = 0; i < num_rows; i++) {
    if (pread(fd, scratch, width * 2, starts[i] * 2) != width * 2) return -1;
    widen(scratch, out + (i % batch) * width, width);
  }
  return 0;
}

int pread_keep(int fd, const int64_t *starts, int64_t num_rows, int64_t width, int64_t batch,
               uint16_t *out) {
  for (int64_t i = 0; i < num_rows; i++)
    if (pread(fd, out + (i % batch) * width, width * 2, starts[i] * 2) != width * 2) return -1;
  return 0;
}

int mmap_widen(const uint16_t *tokens, const int64_t *starts, int64_t num_rows, int64_t width,
               int64_t batch, int64_t *out) {
  for (int64_t i = 0; i < num_rows; i++)
    widen(tokens + starts[i], out + (i % batch) * width, width);
  return 0;
}

int mmap_keep(const uint16_t *tokens, const int64_t *starts, int64_t num_rows, int64_t width,
              int64_t batch, uint16_t *out) {
  for (int64_t i = 0; i < num_rows; i++)
    memcpy(out + (i % batch) * width, tokens + starts[i], width * 2);
  return 0;
}

/* Announces row i + ahead before it reads row i; with ahead = 0 nothing is announced. */
int pread_announced(int fd, const int64_t *starts, int64_t num_rows, int64_t width, int64_t batch,
                    uint16_t *out, int64_t ahead) {
  for (int64_t i = 0; ahead > 0 && i < ahead && i < num_rows; i++)
    posix_fadvise(fd, starts[i] * 2, width * 2, POSIX_FADV_WILLNEED);
  for (int64_t i = 0; i < num_rows; i++) {
    if (ahead > 0 && i + ahead < num_rows)
      posix_fadvise(fd, starts[i + ahead] * 2, width * 2, POSIX_FADV_WILLNEED);
    if (pread(fd, out + (i % batch) * width, width * 2, starts[i] * 2) != width * 2) return -1;
  }
  return 0;
}

/* Whole batches of `width` 4-byte tokens that start at byte offsets of a map. The first only reads
   them, which is what memory allows. The second widens them into `num_out` buffers in turn. The
   third into one, 16 KiB at a time read first and then written: while the buffer stays in the
   processor's cache, that is the fastest of what was tried. */
uint64_t read_batches(const char *mapped, const int64_t *offsets, int64_t count, int64_t width) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; k++) {
    const uint32_t *from = (const uint32_t *)(mapped + offsets[k]);
    for (int64_t i = 0; i < width; i++) sum += from[i];
  }
  return sum;
}

int widen_batches(const char *mapped, const int64_t *offsets, int64_t count, int64_t width,
                  int64_t *out, int64_t num_out) {
  for (int64_t k = 0; k < count; k++) {
    const uint32_t *restrict from = (const uint32_t *)(mapped + offsets[k]);
    int64_t *restrict to = out + (k % num_out) * width;
    for (int64_t i = 0; i < width; i++) to[i] = from[i];
  }
  return 0;
}

uint64_t widen_in_steps(const char *mapped, const int64_t *offsets, int64_t count, int64_t width,
                        int64_t *restrict out) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; k++) {
    const uint32_t *restrict from = (const uint32_t *)(mapped + offsets[k]);
    for (int64_t first = 0; first < width; first += 4096) {
      int64_t last = first + 4096 < width ? first + 4096 : width;
      for (int64_t i = first; i < last; i++) sum += from[i];
      for (int64_t i = first; i < last; i++) out[i] = from[i];
    }
  }
  return sum;
}
