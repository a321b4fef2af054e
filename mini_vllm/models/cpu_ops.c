/* The small operations of a decode step on a CPU, in bfloat16. Knows rows of numbers; knows no request. Chapter 14.

   In torch each is several calls of 1 to 10 microseconds, hundreds of times a step; here it is one pass over its rows.
   Arithmetic is in float32; results are rounded to bfloat16 where torch rounds them. Threads are torch's own. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

enum { LANES = 16, TILE = 64, SMALL = 1 << 14 }; /* SMALL: numbers that one thread does alone */

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

typedef float Vector __attribute__((vector_size(64)));

static inline Vector wide_vector(const bf16 *from) {
  typedef uint16_t Half __attribute__((vector_size(32)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
  Half half;
  memcpy(&half, from, 32);
  return (Vector)(__builtin_convertvector(half, Bits) << 16);
}

static inline float sum_of(Vector v) {
  typedef float V8 __attribute__((vector_size(32)));
  typedef float V4 __attribute__((vector_size(16)));
  V8 eight[2];
  V4 four[2];
  memcpy(eight, &v, 64);
  eight[0] += eight[1];
  memcpy(four, eight, 32);
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

/* sum[head] += score[head][j] · value j over n values, for some heads that share a KV head; 64 numbers of a value at a
   time, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void weigh(Vector *sum, float (*score)[TILE], const bf16 *values,
                                                        const int64_t *places, int64_t n, int64_t vectors,
                                                        const int at_once) {
  for (int64_t first = 0; first < vectors; first += 4) {
    int64_t count = vectors - first < 4 ? vectors - first : 4;
    Vector mine[4][4] = {0};
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < count; i++) {
        Vector value = wide_vector(values + places[j] + (first + i) * LANES);
        for (int g = 0; g < at_once; g++) mine[g][i] += score[g][j] * value;
      }
    for (int g = 0; g < at_once; g++)
      for (int64_t i = 0; i < count; i++) sum[g * vectors + first + i] += mine[g][i];
  }
}

/* All heads of one request's row, with the softmax corrected tile by tile (chapter 13). A token's KV heads lie side by
   side, so memory is read in order. `at_once` heads that share a KV head convert its numbers once for all.
   Always inlined: for the usual sizes `vectors` and `at_once` are constants. */
static inline __attribute__((always_inline)) void attend(bf16 *out, const bf16 *query, const bf16 *keys,
                                                         const bf16 *values, const int32_t *table, int64_t first,
                                                         int64_t len, int64_t kv_heads, int64_t group, int64_t vectors,
                                                         int64_t block_size, float softmax_scale, const int at_once) {
  int64_t heads = kv_heads * group, stride = kv_heads * vectors * LANES;
  Vector scaled[heads * vectors], sum[heads * vectors];
  float score[heads][TILE], largest[heads], total[heads];
  for (int64_t i = 0; i < heads * vectors; i++)
    scaled[i] = wide_vector(query + i * LANES) * softmax_scale, sum[i] = (Vector){0};
  for (int64_t h = 0; h < heads; h++) largest[h] = -INFINITY, total[h] = 0;
  const int32_t *entry = table + first / block_size;
  int64_t offset = first % block_size;
  for (int64_t start = first; start < len; start += TILE) {
    int64_t n = len - start < TILE ? len - start : TILE, places[TILE];
    for (int64_t j = 0; j < n; j++) {
      if (offset == block_size) entry++, offset = 0;
      places[j] = (*entry * block_size + offset++) * stride;
    }
    for (int64_t j = 0; j < n; j++) {
      for (int64_t i = 0; i < stride; i += 32) __builtin_prefetch(values + places[j] + i); /* read below */
      for (int64_t h = 0; h < heads; h += at_once) {
        Vector dot[4] = {0};
        for (int64_t i = 0; i < vectors; i++) {
          Vector key = wide_vector(keys + places[j] + (h / group * vectors + i) * LANES);
          for (int g = 0; g < at_once; g++) dot[g] += scaled[(h + g) * vectors + i] * key;
        }
        for (int g = 0; g < at_once; g++) score[h + g][j] = sum_of(dot[g]);
      }
    }
    for (int64_t h = 0; h < heads; h++) {
      float top = largest[h], part = 0;
      for (int64_t j = 0; j < n; j++) top = score[h][j] > top ? score[h][j] : top; /* a NaN shows in part */
      float correction = exponential(largest[h] - top);
#pragma omp simd reduction(+ : part)
      for (int64_t j = 0; j < n; j++) score[h][j] = exponential(score[h][j] - top), part += score[h][j];
      total[h] = total[h] * correction + part, largest[h] = top;
      for (int64_t i = 0; i < vectors; i++) sum[h * vectors + i] *= correction;
    }
    for (int64_t h = 0; h < heads; h += at_once)
      weigh(sum + h * vectors, score + h, values + h / group * vectors * LANES, places, n, vectors, at_once);
  }
  for (int64_t i = 0; i < heads * vectors * LANES; i++)
    out[i] = narrow(len ? sum[i / LANES][i % LANES] / total[i / LANES / vectors] : 0.0f);
}

static inline __attribute__((always_inline)) void product(bf16 *out, const float *x, const bf16 *w, const bf16 *bias,
                                                         int64_t rows, int64_t dim, const int tokens) {
  typedef uint32_t Bits __attribute__((vector_size(64)));
#pragma omp parallel for schedule(static) if (rows * dim > SMALL)
  for (int64_t n = 0; n < rows; n += 64) {
    const bf16 *from = w + n * dim;
    Vector sums[4][4] = {0}; /* [token][16 of the 64 n] */
    for (int64_t k = 0; k < dim; k += 2, from += 128)
      for (int i = 0; i < 4; i++) {
        Bits pairs;
        memcpy(&pairs, from + i * 32, 64);
        Vector even = (Vector)(pairs << 16), odd = (Vector)(pairs & 0xFFFF0000u);
        for (int t = 0; t < tokens; t++) sums[t][i] += even * x[t * dim + k], sums[t][i] += odd * x[t * dim + k + 1];
      }
    for (int t = 0; t < tokens; t++)
      for (int i = 0; i < 64; i++)
        out[t * rows + n + i] = narrow(sums[t][i / LANES][i % LANES] + (bias ? wide(bias[n + i]) : 0.0f));
  }
}

/* out[t, n] = sum over k of x[t, k] · w[n, k] (+ bias[n]) for 1 to 4 tokens: how fast w can be read is what counts.

   w lies in oneDNN's order AB16b64a2b: blocks of 64 n, within them pairs of k, within these the 64 n, then the pair.
   So memory is read in order, and no sum across the lanes of a vector is needed. rows: a multiple of 64. */
void few_tokens_product(bf16 *out, const bf16 *x, const bf16 *w, const bf16 *bias, int64_t tokens, int64_t rows,
                        int64_t dim) {
  float inputs[tokens * dim];
  for (int64_t i = 0; i < tokens * dim; i++) inputs[i] = wide(x[i]);
  if (tokens == 1) product(out, inputs, w, bias, rows, dim, 1);
  if (tokens == 2) product(out, inputs, w, bias, rows, dim, 2);
  if (tokens == 3) product(out, inputs, w, bias, rows, dim, 3);
  if (tokens == 4) product(out, inputs, w, bias, rows, dim, 4);
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

/* Attention of one row a request, through its block table: K and V are read where they lie.

   dim is a multiple of 16. q, out [rows, heads, dim]; keys, values [slots, kv_heads, dim]; request r has its row in
   rows[r], and sees the last `window` (0: all) of its positions 0 .. seq_lens[r] - 1. */
void paged_decode(bf16 *out, const bf16 *q, const bf16 *keys, const bf16 *values, const int64_t *rows,
                  const int32_t *seq_lens, const int32_t *block_table, int64_t requests, int64_t table_stride,
                  int64_t q_stride, int64_t kv_heads, int64_t group, int64_t dim, int64_t block_size, int64_t window,
                  float softmax_scale) {
#pragma omp parallel for schedule(dynamic) if (requests > 1)
  for (int64_t r = 0; r < requests; r++) {
    int64_t len = seq_lens[r], first = window && len > window ? len - window : 0;
    bf16 *to = out + rows[r] * kv_heads * group * dim;
    const bf16 *row = q + rows[r] * q_stride;
    const int32_t *table = block_table + r * table_stride;
#define ATTEND(vectors, at_once) \
  attend(to, row, keys, values, table, first, len, kv_heads, group, vectors, block_size, softmax_scale, at_once)
    if (dim == 64 && group % 3 == 0)
      ATTEND(64 / LANES, 3);
    else if (dim == 64 && group % 4 == 0)
      ATTEND(64 / LANES, 4);
    else if (dim == 128 && group % 4 == 0)
      ATTEND(128 / LANES, 4);
    else
      ATTEND(dim / LANES, 1);
  }
}
