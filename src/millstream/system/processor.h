/* Which instructions this processor has beyond those that every x86-64 has. */
#ifndef MILLSTREAM_PROCESSOR_H
#define MILLSTREAM_PROCESSOR_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>

#define MILLSTREAM_X86 1
#define MILLSTREAM_AVX2 __attribute__((target("avx2")))

/* Whether the processor has AVX2 and the system saves its registers. */
static int millstream_has_avx2(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) != 0;
}
#else
#define MILLSTREAM_X86 0
#define MILLSTREAM_AVX2
static int millstream_has_avx2(void) { return 0; }
#endif

/* Asked once, when the module is loaded. */
static int millstream_use_avx2;
__attribute__((constructor)) static void millstream_ask_processor(void) {
    millstream_use_avx2 = millstream_has_avx2();
}

#endif
