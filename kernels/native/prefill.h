// Paged attention of many queries of one sequence: tiles of keys, weights relative to the largest score so far.

#pragma once

#include "linear.h"

namespace {

// Keys of a tile. Tiles begin at multiples of it, so that a query's bits do not depend on where its chunk begins.
constexpr int64_t KEYS = 64;
// Rows (a query's heads are one each) that share a tile's keys.
constexpr int64_t SHARED = 48;

// New tokens of one sequence: rows row to row + queries of the step, the last of `context`. slots[0] is position `begin`'s.
struct Chunk {
  int64_t row, queries, context, begin;
  const int64_t* slots;
};

// Keys as a linear layer's packed weights, outputs being keys; what is missing to a tile repeats the last.
inline void pack_keys(const bf16* keys, const int64_t* slots, int64_t count, int64_t dim, bf16* packed) {
  for (int64_t block = 0; block < KEYS / LANES; block++)
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
      Pairs r[16];
      for (int64_t i = 0; i < LANES; i++)
        r[i] = load_pairs(keys + slots[std::min(block * LANES + i, count - 1)] * dim + d);
      transpose(r);
      for (int64_t i = 0; i < LANES; i++) store_pairs(packed + (block * dim / 2 + d / 2 + i) * 2 * LANES, r[i]);
    }
}

template <int ROWS, int BLOCKS, typename X>
void scores_of(const X* q, int64_t dim, const bf16* packed, float* scores) {
  for (int64_t block = 0; block < KEYS / LANES; block += BLOCKS) {
    Floats sum[BLOCKS][ROWS];
    product<ROWS, BLOCKS>(q, dim, packed + block * LANES * dim, dim / 2, sum);
    for (int b = 0; b < BLOCKS; b++)
      for (int r = 0; r < ROWS; r++) store(scores + r * KEYS + (block + b) * LANES, sum[b][r]);
  }
}

// One row's scores become weights relative to its largest score so far, nought outside of [from, to). What was summed
// before is to be multiplied with the result.
inline float reweigh(float* scores, int64_t from, int64_t to, float scale, float& largest, float& total) {
  constexpr int PARTS = KEYS / LANES;
  Floats part[PARTS];
  Mask mask[PARTS];
  Floats most = fill(largest);
  for (int i = 0; i < PARTS; i++) {
    mask[i] = first(std::max<int64_t>(0, to - i * LANES)) & ~first(std::max<int64_t>(0, from - i * LANES));
    part[i] = load(scores + i * LANES) * fill(scale);
    most = max_in(mask[i], most, part[i]);
  }
  const float now = largest_of(most);
  const float faded = first_of(exp(fill(largest - now)));
  Floats sum = zeros();
  for (int i = 0; i < PARTS; i++) {
    const Floats weight = keep(mask[i], exp(part[i] - fill(now)));
    store(scores + i * LANES, weight);
    sum = sum + weight;
  }
  largest = now;
  total = total * faded + sum_of(sum);
  return faded;
}

template <int ROWS, int PARTS>
void add_values(const float* values, int64_t count, int64_t dim, const float* weights, const float* faded, float* mixed) {
  Floats sum[ROWS][PARTS];
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < PARTS; i++)
      sum[r][i] = load(mixed + r * dim + i * LANES) * fill(faded[r]);
  for (int64_t t = 0; t < count; t++) {
    Floats part[PARTS];
    for (int i = 0; i < PARTS; i++) part[i] = load(values + t * dim + i * LANES);
    for (int r = 0; r < ROWS; r++) {
      const Floats weight = fill(weights[r * KEYS + t]);
      for (int i = 0; i < PARTS; i++) sum[r][i] = fma(weight, part[i], sum[r][i]);
    }
  }
// By force: as loops, GCC 12 for AVX2 keeps every sum in memory.
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) store(mixed + r * dim + i * LANES, sum[r][i]);
}

template <int ROWS>
void add_tile(const float* values, int64_t count, int64_t dim, const float* weights, const float* faded, float* mixed) {
  int64_t d = 0;
  constexpr int MOST = sized(4, 2);
  for (; d + MOST * LANES <= dim; d += MOST * LANES)
    add_values<ROWS, MOST>(values + d, count, dim, weights, faded, mixed + d);
  for (; d < dim; d += 2 * LANES) add_values<ROWS, 2>(values + d, count, dim, weights, faded, mixed + d);
}

// Queries `begin` to `end` of a chunk, and the heads of one kv head.
template <typename X>
void attend_tile(const Attend& call, const Chunk& chunk, int64_t begin, int64_t end, int64_t kv_head) {
  static thread_local std::vector<X> held_queries;
  static thread_local std::vector<bf16> packed;
  static thread_local std::vector<float> values, scores, mixed, state;
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim, rows = (end - begin) * group;
  const bf16* keys = call.kv + kv_head * call.num_slots * dim;
  const bf16* held_values = keys + call.kv_heads * call.num_slots * dim;
  held_queries.resize(rows * dim);
  packed.resize(KEYS * dim);
  values.resize(KEYS * dim);
  scores.resize(rows * KEYS);
  mixed.assign(rows * dim, 0.0f);
  state.resize(3 * rows);
  float *largest = state.data(), *total = largest + rows, *faded = total + rows;
  for (int64_t m = 0; m < rows; m++) {
    const int64_t head = kv_head * group + m % group;
    const bf16* q = call.q + (chunk.row + begin + m / group) * call.q_row + head * dim;
    for (int64_t d = 0; d < dim; d += LANES)
      if constexpr (sizeof(X) == sizeof(float))
        store(held_queries.data() + m * dim + d, load(q + d));
      else
        std::memcpy(held_queries.data() + m * dim + d, q + d, LANES * sizeof(bf16));
    largest[m] = call.sinks ? call.sinks[head] : -INFINITY;
    total[m] = call.sinks ? 1.0f : 0.0f;
  }
  const int64_t start = chunk.context - chunk.queries, last = start + end;
  const int64_t seen = call.window ? std::max<int64_t>(0, start + begin - call.window + 1) / KEYS * KEYS : 0;
  for (int64_t at = seen; at < last; at += KEYS) {
    const int64_t count = std::min(KEYS, last - at), *slots = chunk.slots + at - chunk.begin;
    request(keys, slots + count, std::min(KEYS, last - at - count), dim);
    request(held_values, slots + count, std::min(KEYS, last - at - count), dim);
    pack_keys(keys, slots, count, dim, packed.data());
    for (int64_t t = 0; t < count; t++)
      for (int64_t d = 0; d < dim; d += LANES)
        store(values.data() + t * dim + d, load(held_values + slots[t] * dim + d));
    const X* q = held_queries.data();
    int64_t m = 0;
    const auto score = [&](auto function) { function(q + m * dim, dim, packed.data(), scores.data() + m * KEYS); };
    for (; m + TALL <= rows; m += TALL) score(scores_of<TALL, sized(2, 1), X>);
    for (; m + 4 <= rows; m += 4) score(scores_of<4, sized(4, 1), X>);
    for (; m < rows; m++) score(scores_of<1, 4, X>);
    for (m = 0; m < rows; m++) {
      const int64_t to = start + begin + m / group + 1 - at, from = call.window ? std::max<int64_t>(0, to - call.window) : 0;
      if (from < std::min(to, count)) {
        faded[m] = reweigh(scores.data() + m * KEYS, from, std::min(to, count), call.scale, largest[m], total[m]);
      } else {
        faded[m] = 1.0f;
        std::fill_n(scores.data() + m * KEYS, KEYS, 0.0f);
      }
    }
    m = 0;
    const auto rest = [&](auto function) {
      function(values.data(), count, dim, scores.data() + m * KEYS, faded + m, mixed.data() + m * dim);
    };
    for (constexpr int MOST = sized(6, 3); m + MOST <= rows; m += MOST) rest(add_tile<MOST>);
    for (; m + 3 <= rows; m += 3) rest(add_tile<3>);
    for (; m < rows; m++) rest(add_tile<1>);
  }
  for (int64_t m = 0; m < rows; m++) {
    bf16* out = call.out + ((chunk.row + begin + m / group) * call.heads + kv_head * group + m % group) * dim;
    for (int64_t d = 0; d < dim; d += LANES)
      store(out + d, load(mixed.data() + m * dim + d) / fill(total[m]));
  }
}

}  // namespace
