/* The small operations of a decode step on a CPU, in bfloat16. Knows rows of numbers; knows no request. Chapter 14.

   In torch each is several calls of 1 to 10 microseconds, hundreds of times a step; here it is one pass over its rows. */
#include "cpu_ops.h"

#include <stddef.h>

enum { SMALL = 1 << 14, AT_ONCE = 6 }; /* numbers that one thread does alone; tokens whose sums fit the registers */

/* out[t, h] = norm of x[t, h] · weight. With `residual`: residual += x first, and the norm is that of the sum. */
void rms_norm(bf16 *out, const bf16 *x, bf16 *residual, const bf16 *weight, int64_t tokens, int64_t heads, int64_t dim,
              int64_t token_stride, float eps) {
#pragma omp parallel for if (tokens * heads * dim > SMALL)
  for (int64_t row = 0; row < tokens * heads; row++) {
    const bf16 *in = x + row / heads * token_stride + row % heads * dim;
    bf16 *to = out + row * dim;
    if (residual) {
      bf16 *sum = residual + row * dim;
#pragma omp simd
      for (int64_t i = 0; i < dim; i++) sum[i] = narrow(wide(sum[i]) + wide(in[i]));
      in = sum;
    }
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < dim; i++) squares += wide(in[i]) * wide(in[i]);
    float scale = 1.0f / sqrtf(squares / dim + eps);
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) to[i] = narrow(wide(weight[i]) * rounded(wide(in[i]) * scale));
  }
}

/* Turns x[t, h] in place: number i is paired with number i + dim / 2. */
void rotate(bf16 *x, const bf16 *cosines, const bf16 *sines, int64_t tokens, int64_t heads, int64_t dim,
            int64_t token_stride) {
  int64_t half = dim / 2;
#pragma omp parallel for if (tokens * heads * dim > SMALL)
  for (int64_t t = 0; t < tokens; t++) {
    const bf16 *c = cosines + t * dim, *s = sines + t * dim;
    for (int64_t h = 0; h < heads; h++) {
      bf16 *first = x + t * token_stride + h * dim, *second = first + half;
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        float a = wide(first[i]), b = wide(second[i]);
        first[i] = narrow(rounded(a * wide(c[i])) - rounded(b * wide(s[i])));
        second[i] = narrow(rounded(b * wide(c[half + i])) + rounded(a * wide(s[half + i])));
      }
    }
  }
}

/* out[t] = silu(gate[t]) · up[t]; gate_up[t] holds both, one behind the other. */
void silu_and_mul(bf16 *out, const bf16 *gate_up, int64_t tokens, int64_t dim) {
#pragma omp parallel for if (tokens * dim > SMALL)
  for (int64_t t = 0; t < tokens; t++) {
    const bf16 *gate = gate_up + t * 2 * dim, *up = gate + dim;
    bf16 *to = out + t * dim;
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) {
      float g = wide(gate[i]);
      to[i] = narrow(rounded(g / (1.0f + exponential(-g))) * wide(up[i]));
    }
  }
}

/* 64 rows of w, from which memory is read in order, times up to 6 tokens. */
static inline __attribute__((always_inline)) void product(bf16 *out, const bf16 *x, const bf16 *w, const bf16 *bias,
                                                         int64_t rows, int64_t dim, const int tokens) {
  Vector sums[AT_ONCE][4] = {0}; /* [token][16 of the 64 n] */
  for (int64_t k = 0; k < dim; k += 2, w += 128)
    for (int i = 0; i < 4; i++) {
      if (tokens <= 2) __builtin_prefetch(w + 1024 + i * 32, 0, 2); /* with so little to do, nothing else looks ahead */
      Pairs pairs = load(w + i * 32);
      for (int t = 0; t < tokens; t++) sums[t][i] = add_products(sums[t][i], pairs, to_all_lanes(x + t * dim + k));
    }
  for (int t = 0; t < tokens; t++)
    for (int i = 0; i < 64; i++)
      out[t * rows + i] = narrow(sums[t][i / LANES][i % LANES] + (bias ? wide(bias[i]) : 0.0f));
}

/* out[t, n] = sum over k of x[t, k] · w[n, k] (+ bias[n]) for some tokens: how fast w can be read is what counts.

   w lies in oneDNN's order AB16b64a2b: blocks of 64 n, within them pairs of k, within these the 64 n, then the pair.
   So no sum across the lanes of a vector is needed. A block meets all tokens while it is in the cache.
   rows: a multiple of 64. */
void few_tokens_product(bf16 *out, const bf16 *x, const bf16 *w, const bf16 *bias, int64_t tokens, int64_t rows,
                        int64_t dim) {
#pragma omp parallel for schedule(static) if (rows * dim > SMALL)
  for (int64_t n = 0; n < rows; n += 64)
    for (int64_t t = 0; t < tokens; t += AT_ONCE) {
      bf16 *to = out + t * rows + n;
      const bf16 *from = x + t * dim, *block = w + n * dim, *add = bias ? bias + n : NULL;
      switch (tokens - t) {
        case 1: product(to, from, block, add, rows, dim, 1); break;
        case 2: product(to, from, block, add, rows, dim, 2); break;
        case 3: product(to, from, block, add, rows, dim, 3); break;
        case 4: product(to, from, block, add, rows, dim, 4); break;
        case 5: product(to, from, block, add, rows, dim, 5); break;
        default: product(to, from, block, add, rows, dim, AT_ONCE);
      }
    }
}

/* Row t of k and of v to its slot of the cache. A negative slot writes nothing. */
void store_kv(bf16 *keys, bf16 *values, const bf16 *k, const bf16 *v, const int64_t *slots, int64_t tokens,
              int64_t width, int64_t k_stride, int64_t v_stride) {
  for (int64_t t = 0; t < tokens; t++) {
    if (slots[t] < 0) continue;
    memcpy(keys + slots[t] * width, k + t * k_stride, width * sizeof(bf16));
    memcpy(values + slots[t] * width, v + t * v_stride, width * sizeof(bf16));
  }
}
