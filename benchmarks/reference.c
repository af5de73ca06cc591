/* What the hardware can do: read rows of 2-byte tokens from a file into one reused batch.

   There is no shard lookup, no shuffle and no hand-over: an array holds the starts of the rows.
   Row i goes into row i % batch of the batch. Functions return -1 if a read fails or is short. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  int fd;                 /* the file to read, unless there is a map */
  const uint16_t *mapped; /* or NULL */
  const int64_t *starts;  /* of rows, in tokens */
  int64_t num_rows, width, batch;
  uint16_t *scratch; /* one row, as stored */
} Rows;

static void widen(const uint16_t *restrict from, int64_t *restrict to, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

static const uint16_t *row_at(const Rows *rows, int64_t start) {
  if (rows->mapped) return rows->mapped + start;
  int64_t size = rows->width * 2;
  return pread(rows->fd, rows->scratch, size, start * 2) == size ? rows->scratch : NULL;
}

/* The consumer of consumer.py: one element of every 4 KiB page. */
static volatile int64_t touched;

static void touch(const int64_t *values, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; i += 512) sum += values[i];
  touched = sum;
}

static int is_last_of_batch(const Rows *rows, int64_t i) { return (i + 1) % rows->batch == 0; }

/* Inputs and labels are separate arrays, as in a loader. */
static int fill_row(const Rows *rows, int64_t i, int64_t *inputs, int64_t *labels) {
  int64_t seq_len = rows->width - 1, to = (i % rows->batch) * seq_len;
  const uint16_t *row = row_at(rows, rows->starts[i]);
  if (!row) return -1;
  widen(row, inputs + to, seq_len);
  widen(row + 1, labels + to, seq_len);
  return 0;
}

int fill_both(const Rows *rows, int64_t *inputs, int64_t *labels) {
  int64_t size = rows->batch * (rows->width - 1);
  for (int64_t i = 0; i < rows->num_rows; i++) {
    if (fill_row(rows, i, inputs, labels)) return -1;
    if (is_last_of_batch(rows, i)) {
      touch(inputs, size);
      touch(labels, size);
    }
  }
  return 0;
}

/* Writes half as much: labels are the inputs' array, shifted by one element. */
int widen_once(const Rows *rows, int64_t *out) {
  int64_t width = rows->width;
  for (int64_t i = 0; i < rows->num_rows; i++) {
    const uint16_t *row = row_at(rows, rows->starts[i]);
    if (!row) return -1;
    widen(row, out + (i % rows->batch) * width, width);
    if (is_last_of_batch(rows, i)) {
      for (int64_t k = 0; k < rows->batch; k++) touch(out + k * width, width - 1);
      for (int64_t k = 0; k < rows->batch; k++) touch(out + k * width + 1, width - 1);
    }
  }
  return 0;
}

/* No widening: a row of up to 2,048 tokens is one page. */
int keep(const Rows *rows, uint16_t *out) {
  int64_t width = rows->width, size = width * 2;
  for (int64_t i = 0; i < rows->num_rows; i++) {
    uint16_t *to = out + (i % rows->batch) * width;
    if (rows->mapped)
      memcpy(to, rows->mapped + rows->starts[i], size);
    else if (pread(rows->fd, to, size, rows->starts[i] * 2) != size)
      return -1;
    if (is_last_of_batch(rows, i))
      for (int64_t k = 0; k < rows->batch; k++) touched = out[k * width] + out[k * width + 1];
  }
  return 0;
}

/* Fills one batch per byte in the pipe `steps`, until it closes. */
int fill_at_pace(const Rows *rows, int64_t *inputs, int64_t *labels, int steps) {
  char step;
  for (int64_t i = 0; read(steps, &step, 1) == 1;)
    for (int64_t k = 0; k < rows->batch; k++, i = (i + 1) % rows->num_rows)
      if (fill_row(rows, i, inputs, labels)) return -1;
  return 0;
}

/* Announces row i + ahead before reading row i; ahead = 0 announces nothing. */
int pread_announced(const Rows *rows, uint16_t *out, int64_t ahead) {
  int64_t size = rows->width * 2;
  for (int64_t i = -ahead; i < rows->num_rows; i++) {
    if (ahead && i + ahead < rows->num_rows)
      posix_fadvise(rows->fd, rows->starts[i + ahead] * 2, size, POSIX_FADV_WILLNEED);
    if (i < 0) continue;
    uint16_t *to = out + (i % rows->batch) * rows->width;
    if (pread(rows->fd, to, size, rows->starts[i] * 2) != size) return -1;
  }
  return 0;
}

/* Row i consists of the runs first_run[order[i]] to first_run[order[i] + 1], one pread each. */
int pread_runs(int fd, const int64_t *run_starts, const int64_t *run_lengths,
               const int64_t *first_run, const int64_t *order, int64_t num_rows, int64_t seq_len,
               int64_t batch, uint16_t *scratch, int64_t *inputs, int64_t *labels) {
  for (int64_t i = 0; i < num_rows; i++) {
    uint16_t *end = scratch;
    for (int64_t run = first_run[order[i]]; run < first_run[order[i] + 1]; run++) {
      int64_t size = run_lengths[run] * 2;
      if (pread(fd, end, size, run_starts[run] * 2) != size) return -1;
      end += run_lengths[run];
    }
    widen(scratch, inputs + (i % batch) * seq_len, seq_len);
    widen(scratch + 1, labels + (i % batch) * seq_len, seq_len);
    if ((i + 1) % batch == 0) {
      touch(inputs, batch * seq_len);
      touch(labels, batch * seq_len);
    }
  }
  return 0;
}

/* Whole batches of `width` 4-byte tokens at byte offsets of a map. The first function only reads
   them: the limit of memory. The second widens them into `num_out` buffers in turn. The third
   widens them into one buffer, 16 KiB at a time, read first and then written: the fastest variant
   that was tried, while the buffer stays in the processor's cache. */
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

/* Documents of `size` bytes, which start at byte offsets of a file, in batches. Batches go to
   `num_out` buffers in turn: as many as a consumer holds. */
int read_documents(int fd, const int64_t *offsets, int64_t count, int64_t size, int64_t batch,
                   char *out, int64_t num_out) {
  for (int64_t k = 0; k < count; k++) {
    char *to = out + (k / batch % num_out) * batch * size;
    if (pread(fd, to + k % batch * size, size, offsets[k]) != size) return -1;
    if ((k + 1) % batch == 0) touch((const int64_t *)to, batch * size / 8);
  }
  return 0;
}
