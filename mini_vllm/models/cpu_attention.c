/* Attention on a CPU in bfloat16: K and V are read where they lie, through the block table. Chapters 13 and 14.

   Both forms go over a request's tokens 16 at a time and correct the softmax tile by tile (chapter 13). They differ in
   what the 16 lanes of a vector are: tokens where there is one query a head, queries where there are several. */
#include "cpu_ops.h"

typedef struct { /* a walk along a request's tokens */
  const int32_t *entry; /* of the block table */
  int64_t offset, block_size, left, stride, place;
} Walk;

static inline Walk walk_from(const int32_t *table, int64_t first, int64_t end, int64_t block_size, int64_t stride) {
  return (Walk){table + first / block_size, first % block_size, block_size, end - first, stride, 0};
}

/* Where the next 16 tokens lie. Behind the last token the last one stands again: nothing else may be read. */
static inline __attribute__((always_inline)) void next_places(Walk *walk, int64_t *places) {
  for (int64_t j = 0; j < LANES; j++, walk->left--) {
    if (walk->left > 0) {
      if (walk->offset == walk->block_size) walk->entry++, walk->offset = 0;
      walk->place = (*walk->entry * walk->block_size + walk->offset++) * walk->stride;
    }
    places[j] = walk->place;
  }
}

/* Each number of two tokens' values side by side, so that a pair of weights meets both. */
static inline __attribute__((always_inline)) void pair_values(uint32_t *pairs, const bf16 *values,
                                                             const int64_t *places, int64_t dim) {
  for (int64_t j = 0; j < LANES; j += 2) {
    const bf16 *a = values + places[j], *b = values + places[j + 1];
#pragma omp simd
    for (int64_t d = 0; d < dim; d++) pairs[j / 2 * dim + d] = a[d] | (uint32_t)b[d] << 16;
  }
}

/* Two weights as bfloat16, rounded half up; neither is negative. A NaN shows in their sum, which is of floats. */
static inline uint32_t weight_pair(float a, float b) {
  uint32_t low, high;
  memcpy(&low, &a, 4), memcpy(&high, &b, 4);
  return (low + 0x8000) >> 16 | ((high + 0x8000) & 0xFFFF0000u);
}

/* Lane i of the result is the sum of v[i]. */
static inline Vector sums_of(const Vector v[LANES]) {
  typedef int32_t Lanes __attribute__((vector_size(64)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__}) /* lanes 0 .. 15 of a, 16 .. 31 of b */
#define JOIN(a, b)                                                                 \
  (PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) + \
   PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
  Vector two[8], four[4];
  for (int i = 0; i < 8; i++)
    two[i] = PICK(v[2 * i], v[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
             PICK(v[2 * i], v[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  for (int i = 0; i < 4; i++)
    four[i] = PICK(two[2 * i], two[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
              PICK(two[2 * i], two[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  return JOIN(JOIN(four[0], four[1]), JOIN(four[2], four[3]));
}

/* All heads of one request's row; a lane is a token. A token's KV heads lie side by side: memory is read in order.
   Always inlined: for the usual sizes `dim` is a constant. */
static inline __attribute__((always_inline)) void attend(bf16 *out, const bf16 *query, const bf16 *keys,
                                                        const bf16 *values, Walk walk, int64_t kv_heads, int64_t group,
                                                        int64_t dim, float softmax_scale) {
  int64_t heads = kv_heads * group, places[2][LANES], *mine = places[0], *next = places[1];
  int64_t ahead[LANES * kv_heads]; /* the next tile, head by head in the order of memory: any other comes half as fast */
  Vector sum[heads][dim / LANES], total[heads];
  float largest[heads], score[heads][LANES];
  uint32_t weight[heads][LANES / 2], pairs[LANES / 2][dim];
  for (int64_t h = 0; h < heads; h++) {
    largest[h] = NOTHING_YET, total[h] = (Vector){0};
    for (int64_t i = 0; i < dim / LANES; i++) sum[h][i] = (Vector){0};
  }
  const int64_t len = walk.left;
  next_places(&walk, mine);
  for (int64_t left = len; left > 0; left -= LANES) {
    next_places(&walk, next);
    for (int64_t j = 0; j < LANES; j++)
      for (int64_t kv = 0; kv < kv_heads; kv++) ahead[j * kv_heads + kv] = next[j] + kv * dim;
    for (int64_t h = 0, kv = 0; kv < kv_heads; kv++)
      for (int64_t g = 0; g < group; g++, h++) {
        Vector dot[LANES];
        for (int64_t j = 0; j < LANES; j++) {
          const bf16 *key = keys + mine[j] + kv * dim;
          int64_t piece = ahead[kv * LANES + j];
          if (g == 0)
            for (int64_t i = 0; i < dim; i += 32) __builtin_prefetch(keys + piece + i, 0, 2);
          if (g == (group > 1))
            for (int64_t i = 0; i < dim; i += 32) __builtin_prefetch(values + piece + i, 0, 2);
          dot[j] = (Vector){0};
          for (int64_t i = 0; i < dim; i += 32)
            dot[j] = add_products(dot[j], load(query + h * dim + i), load(key + i));
        }
        Vector sums = sums_of(dot) * softmax_scale;
        memcpy(score[h], &sums, sizeof sums);
      }
    for (int64_t h = 0; h < heads; h++) {
      float of_token[LANES], top = largest[h];
      for (int64_t j = left; j < LANES; j++) score[h][j] = -INFINITY;
#pragma omp simd reduction(max : top)
      for (int j = 0; j < LANES; j++) top = score[h][j] > top ? score[h][j] : top;
#pragma omp simd
      for (int j = 0; j < LANES; j++) of_token[j] = exponential(score[h][j] - top);
#pragma omp simd
      for (int j = 0; j < LANES; j += 2) weight[h][j / 2] = weight_pair(of_token[j], of_token[j + 1]);
      Vector all;
      memcpy(&all, of_token, sizeof all);
      if (top > largest[h]) {
        float correction = exponential(largest[h] - top);
        total[h] *= correction, largest[h] = top;
        for (int64_t i = 0; i < dim / LANES; i++) sum[h][i] *= correction;
      }
      total[h] += all;
    }
    for (int64_t h = 0, kv = 0; kv < kv_heads; kv++) {
      pair_values(pairs[0], values + kv * dim, mine, dim);
      for (int64_t g = 0; g < group; g++, h++)
        for (int64_t d = 0; d < dim; d += 2 * LANES) {
          Vector low = sum[h][d / LANES], high = sum[h][d / LANES + 1];
          for (int j = 0; j < LANES / 2; j++) {
            Pairs two = to_all_lanes(&weight[h][j]);
            low = add_products(low, two, load(&pairs[j][d]));
            high = add_products(high, two, load(&pairs[j][d + LANES]));
          }
          sum[h][d / LANES] = low, sum[h][d / LANES + 1] = high;
        }
    }
    int64_t *done = mine;
    mine = next, next = done;
  }
  for (int64_t h = 0; h < heads; h++) {
    float all = 0;
    for (int j = 0; j < LANES; j++) all += total[h][j];
    for (int64_t d = 0; d < dim; d++) out[h * dim + d] = narrow(len ? sum[h][d / LANES][d % LANES] / all : 0.0f);
  }
}

/* Attention of one row a request.

   dim is a multiple of 32. q, out [rows, heads, dim]; keys, values [slots, kv_heads, dim]; request r has its row in
   rows[r], and sees the last `window` (0: all) of its positions 0 .. seq_lens[r] - 1. */
void paged_decode(bf16 *out, const bf16 *q, const bf16 *keys, const bf16 *values, const int64_t *rows,
                  const int32_t *seq_lens, const int32_t *block_table, int64_t requests, int64_t table_stride,
                  int64_t q_stride, int64_t kv_heads, int64_t group, int64_t dim, int64_t block_size, int64_t window,
                  float softmax_scale) {
#pragma omp parallel for schedule(dynamic) if (requests > 1)
  for (int64_t r = 0; r < requests; r++) {
    int64_t len = seq_lens[r], first = window && len > window ? len - window : 0;
    Walk walk = walk_from(block_table + r * table_stride, first, len, block_size, kv_heads * dim);
    bf16 *to = out + rows[r] * kv_heads * group * dim;
    const bf16 *row = q + rows[r] * q_stride;
    if (dim == 64)
      attend(to, row, keys, values, walk, kv_heads, group, 64, softmax_scale);
    else if (dim == 128)
      attend(to, row, keys, values, walk, kv_heads, group, 128, softmax_scale);
    else
      attend(to, row, keys, values, walk, kv_heads, group, dim, softmax_scale);
  }
}

#ifdef __AVX512F__ /* with narrower vectors torch's own is faster; `cpu_ops.can_prefill` asks whether it is here */
/* Rows of one piece, for the query heads that share a KV head; a lane is a query: lane i is row i / group, head
   i % group. Keys and values are told to all lanes at once, so nothing is summed across lanes.

   position: of the first row; it sees the last `window` (0: all) of 0 .. position, the next row one more. */
static void attend_rows(bf16 *out, const bf16 *query, const bf16 *keys, const bf16 *values, const int32_t *table,
                        int64_t rows, int64_t position, int64_t q_stride, int64_t out_stride, int64_t kv_stride,
                        int64_t group, int64_t dim, int64_t block_size, int32_t window, float softmax_scale) {
  uint32_t queries[dim / 2][LANES], weight[LANES / 2][LANES], pairs[LANES / 2][dim];
  int32_t last[LANES]; /* position that a lane may see */
  float largest[LANES], total[LANES];
  Vector sum[dim];
  memset(queries, 0, sizeof queries);
  for (int64_t lane = 0; lane < LANES; lane++) {
    int64_t row = lane / group;
    last[lane] = position + row, largest[lane] = NOTHING_YET, total[lane] = 0;
    const bf16 *from = query + row * q_stride + lane % group * dim;
    for (int64_t d = 0; d < dim / 2 && row < rows; d++) memcpy(&queries[d][lane], from + 2 * d, 4);
  }
  for (int64_t d = 0; d < dim; d++) sum[d] = (Vector){0};

  int64_t end = position + rows, first = window && position >= window ? position + 1 - window : 0, places[LANES];
  Walk walk = walk_from(table, first, end, block_size, kv_stride);
  for (int64_t start = first; start < end; start += LANES) {
    next_places(&walk, places);
    Vector dot[LANES] = {0}; /* of each token */
    for (int64_t d = 0; d < dim / 2; d++) {
      Pairs query_pair = load(queries[d]);
      for (int j = 0; j < LANES; j++)
        dot[j] = add_products(dot[j], query_pair, to_all_lanes(keys + places[j] + 2 * d));
    }
    float score[LANES][LANES], top[LANES], part[LANES] = {0}, correction[LANES]; /* score[token][lane] */
    for (int j = 0; j < LANES; j++) dot[j] *= softmax_scale;
    memcpy(score, dot, sizeof score), memcpy(top, largest, sizeof top);
    if (start + LANES - 1 > position || window)
      for (int32_t j = 0; j < LANES; j++)
#pragma omp simd
        for (int lane = 0; lane < LANES; lane++) {
          int32_t at = start + j;
          int seen = at <= last[lane] && (!window || at > last[lane] - window);
          score[j][lane] = seen ? score[j][lane] : -INFINITY;
        }
    for (int j = 0; j < LANES; j++)
#pragma omp simd
      for (int lane = 0; lane < LANES; lane++) top[lane] = score[j][lane] > top[lane] ? score[j][lane] : top[lane];
    for (int j = 0; j < LANES; j += 2)
#pragma omp simd
      for (int lane = 0; lane < LANES; lane++) {
        float a = exponential(score[j][lane] - top[lane]), b = exponential(score[j + 1][lane] - top[lane]);
        part[lane] += a + b;
        weight[j / 2][lane] = weight_pair(a, b);
      }
#pragma omp simd
    for (int lane = 0; lane < LANES; lane++) {
      correction[lane] = exponential(largest[lane] - top[lane]), largest[lane] = top[lane];
      total[lane] = total[lane] * correction[lane] + part[lane];
    }
    Vector by;
    memcpy(&by, correction, sizeof by);
    pair_values(pairs[0], values, places, dim);
    for (int64_t d = 0; d < dim; d += LANES) {
      Vector some[LANES];
      for (int i = 0; i < LANES; i++) some[i] = sum[d + i] * by;
      for (int j = 0; j < LANES / 2; j++)
        for (int i = 0; i < LANES; i++)
          some[i] = add_products(some[i], load(weight[j]), to_all_lanes(&pairs[j][d + i]));
      memcpy(sum + d, some, sizeof some);
    }
  }
  bf16 result[dim][LANES];
  for (int64_t d = 0; d < dim; d++)
#pragma omp simd
    for (int lane = 0; lane < LANES; lane++) result[d][lane] = narrow(sum[d][lane] / total[lane]);
  for (int64_t lane = 0; lane < rows * group; lane++)
    for (int64_t d = 0; d < dim; d++) out[lane / group * out_stride + lane % group * dim + d] = result[d][lane];
}

/* Attention of pieces of several rows, in tasks of up to 16 / group rows.

   As in paged_decode, and: tasks [n, 2], a request and the first row of its piece that the task does;
   query_start_loc[r] is the first row of request r in q and out. group is at most 16. */
void paged_prefill(bf16 *out, const bf16 *q, const bf16 *keys, const bf16 *values, const int64_t *tasks,
                   const int32_t *query_start_loc, const int32_t *seq_lens, const int32_t *block_table, int64_t n,
                   int64_t table_stride, int64_t q_stride, int64_t kv_heads, int64_t group, int64_t dim,
                   int64_t block_size, int64_t window, float softmax_scale) {
  int64_t out_stride = kv_heads * group * dim, most = LANES / group;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < n * kv_heads; i++) {
    int64_t head = i % kv_heads, r = tasks[i / kv_heads * 2], first = tasks[i / kv_heads * 2 + 1];
    int64_t row = query_start_loc[r] + first, left = query_start_loc[r + 1] - row;
    attend_rows(out + row * out_stride + head * group * dim, q + row * q_stride + head * group * dim, keys + head * dim,
                values + head * dim, block_table + r * table_stride, left < most ? left : most, seq_lens[r] - left,
                q_stride, out_stride, kv_heads * dim, group, dim, block_size, window, softmax_scale);
  }
}
#endif
