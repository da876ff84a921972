// Inner loops compiled twice, and those written for AVX2.
#pragma once

#include <cstddef>  // defines __GLIBC__, where it is the C library

// The copy is chosen when the module is loaded: AVX2 multiplies 32 bit integers in one instruction, SSE2 does not;
// BMI2 shifts by any register.
// Needs glibc's indirect functions, which the sanitizers do not get along with.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(DLIO_SANITIZED)
#define DLIO_FOR_AVX2_TOO __attribute__((target_clones("avx2", "default")))
#define DLIO_FOR_BMI2_TOO __attribute__((target_clones("bmi2", "default")))
#else
#define DLIO_FOR_AVX2_TOO
#define DLIO_FOR_BMI2_TOO
#endif

// Functions that run only where the processor has AVX2, and whether they exist.
#if defined(__x86_64__)
#define DLIO_HAS_AVX2
#endif
#define DLIO_AVX2 __attribute__((target("avx2")))
// Those for the processors of BackEnd::avx512.
#define DLIO_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,bmi,bmi2,popcnt")))

// Functions that run only where the processor has SSE4.2; newer clangs count its checksum instruction apart.
#if defined(__x86_64__) && defined(__clang__)
#define DLIO_SSE42 __attribute__((target("sse4.2,crc32")))
#elif defined(__x86_64__)
#define DLIO_SSE42 __attribute__((target("sse4.2")))
#else
#define DLIO_SSE42
#endif

// Functions that run only where the processor multiplies polynomials in vectors of 32 bytes.
#define DLIO_FOLDING __attribute__((target("avx2,pclmul,vpclmulqdq")))
