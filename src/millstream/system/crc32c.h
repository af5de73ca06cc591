/* CRC32C, the checksum of iSCSI (RFC 3720), ext4 and object stores: by the processor's instruction
 * where it has one, which every x86-64 since 2008 and nearly every aarch64 does, else by a table.
 *
 * In C because Cython has no instructions. They are written as assembly, which gcc, clang and zig
 * take alike, whatever processor they compile for.
 */
#ifndef MILLSTREAM_CRC32C_H
#define MILLSTREAM_CRC32C_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
static int millstream_has_crc32c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) != 0;
}
static inline uint64_t millstream_crc_word(uint64_t crc, uint64_t word) {
    __asm__("crc32q %1, %0" : "+r"(crc) : "rm"(word));
    return crc;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
static int millstream_has_crc32c(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; }
static inline uint64_t millstream_crc_word(uint64_t crc, uint64_t word) {
    uint32_t next;
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w1, %x2" : "=r"(next) : "r"((uint32_t)crc), "r"(word));
    return next;
}
#else
static int millstream_has_crc32c(void) { return 0; }
static inline uint64_t millstream_crc_word(uint64_t crc, uint64_t word) { return crc ^ word; }
#endif

static int millstream_use_crc32c;
static uint32_t millstream_crc_table[256];

/* Once, when the module is loaded. */
__attribute__((constructor)) static void millstream_prepare_crc32c(void) {
    millstream_use_crc32c = millstream_has_crc32c();
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        millstream_crc_table[byte] = crc;
    }
}

static inline uint64_t millstream_word_at(const uint8_t *address) {
    uint64_t word;
    memcpy(&word, address, sizeof(word));
    return word;
}

static uint32_t millstream_crc_bytes(uint32_t crc, const uint8_t *data, int64_t size) {
    for (int64_t i = 0; i < size; i++) crc = crc >> 8 ^ millstream_crc_table[(crc ^ data[i]) & 255];
    return crc;
}

/* The CRC of what has the CRC `before`, and then `data`. */
static uint32_t millstream_crc32c_portable(uint32_t before, const uint8_t *data, int64_t size) {
    return ~millstream_crc_bytes(~before, data, size);
}
static uint32_t millstream_crc32c(uint32_t before, const uint8_t *data, int64_t size) {
    if (!millstream_use_crc32c) return millstream_crc32c_portable(before, data, size);
    uint64_t crc = (uint32_t)~before;
    int64_t i = 0;
    for (; i <= size - 8; i += 8) crc = millstream_crc_word(crc, millstream_word_at(data + i));
    return ~millstream_crc_bytes((uint32_t)crc, data + i, size - i);
}

/* The CRCs of blocks that lie end to end, of a multiple of 8 bytes each.
 *
 * Three at a time: the instruction takes three cycles, and another can begin in each.
 */
static void millstream_crc32c_blocks(
    const uint8_t *data, int64_t block_bytes, int64_t num_blocks, uint32_t *crcs) {
    int64_t k = 0;
    for (; millstream_use_crc32c && k + 3 <= num_blocks; k += 3) {
        const uint8_t *block = data + k * block_bytes;
        uint64_t one = 0xFFFFFFFF, two = 0xFFFFFFFF, three = 0xFFFFFFFF;
        for (int64_t i = 0; i < block_bytes; i += 8) {
            one = millstream_crc_word(one, millstream_word_at(block + i));
            two = millstream_crc_word(two, millstream_word_at(block + block_bytes + i));
            three = millstream_crc_word(three, millstream_word_at(block + 2 * block_bytes + i));
        }
        crcs[k] = ~(uint32_t)one, crcs[k + 1] = ~(uint32_t)two, crcs[k + 2] = ~(uint32_t)three;
    }
    for (; k < num_blocks; k++) crcs[k] = millstream_crc32c(0, data + k * block_bytes, block_bytes);
}

/* A mark that threads set and look at in any order: it guards nothing but itself. */
static inline int millstream_is_marked(const uint8_t *mark) {
    return __atomic_load_n(mark, __ATOMIC_RELAXED);
}
static inline void millstream_mark(uint8_t *mark) { __atomic_store_n(mark, 1, __ATOMIC_RELAXED); }

#endif
