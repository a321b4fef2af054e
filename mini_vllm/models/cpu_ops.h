/* What the compiled CPU operations share: bfloat16, vectors of 16 numbers, e^x. Chapter 14.

   Arithmetic is in float32; results are rounded to bfloat16 where torch rounds them. Threads are torch's own. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef uint16_t bf16;

enum { LANES = 16 };
#define NOTHING_YET (-1e30f) /* the largest score before the first: finite, so that its distance to -infinity is, too */

typedef float Vector __attribute__((vector_size(64)));
typedef uint32_t Pairs __attribute__((vector_size(64))); /* two bfloat16 each, the first in the low half */

static inline float wide(bf16 h) {
  uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static inline bf16 narrow(float x) { /* to the nearest, ties to even; a NaN stays one */
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return x != x ? 0x7FC0 : (bf16)rounded;
}

static inline float rounded(float x) { return wide(narrow(x)); }

/* e^x within 2 units of the last place; libm's does not vectorise. 2^n times a polynomial in the rest. */
static inline float exponential(float x) {
  float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  float n = rintf(clamped * 1.44269504f);
  float r = fmaf(n, -0.693359375f, clamped), scale;
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 8.3333333e-3f + r * 1.3888889e-3f; /* 1/5!, 1/6! */
  p = 1.0f + r * (1.0f + r * (0.5f + r * (1.6666667e-1f + r * (4.1666668e-2f + r * p))));
  int32_t bits = ((int32_t)n + 127) << 23;
  memcpy(&scale, &bits, 4);
  return x < -87.0f ? 0.0f : p * scale;
}

static inline Pairs load(const void *from) { /* 64 bytes */
  Pairs pairs;
  memcpy(&pairs, from, sizeof pairs);
  return pairs;
}

static inline Pairs to_all_lanes(const void *pair) {
  uint32_t bits;
  memcpy(&bits, pair, 4);
  return bits - (Pairs){0};
}

/* sum += the products of both numbers of a pair, in each lane: one instruction where the CPU has it. */
static inline Vector add_products(Vector sum, Pairs a, Pairs b) {
#ifdef __AVX512BF16__
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum += (Vector)(a << 16) * (Vector)(b << 16);
  return sum + (Vector)(a & 0xFFFF0000u) * (Vector)(b & 0xFFFF0000u);
#endif
}
