// Paged attention of single queries.

#pragma once

#include "vectors.h"

namespace {

// Of keys, and of values, that are asked for ahead: with the weights in flight, what a core's cache holds.
constexpr int64_t REQUEST_BYTES = 128 << 10;

struct Attend {
  const bf16 *q, *kv;
  const int64_t *slots, *bounds;
  const float* sinks;
  bf16* out;
  int64_t q_row, heads, kv_heads, head_dim, num_slots, window;
  float scale;
};

// scores[t] = scale * q . key of slots[t]; returns the largest. `scores` has room for whole vectors.
float score(const bf16* q, const bf16* keys, const int64_t* slots, int64_t count, int64_t dim, float scale,
            float* scores) {
  Floats largest = fill(-INFINITY);
  for (int64_t t = 0; t < count; t += LANES) {
    Floats dots[LANES];
    for (int64_t i = 0; i < LANES; i++) {
      const bf16* key = keys + slots[std::min(t + i, count - 1)] * dim;
      dots[i] = zeros();
      for (int64_t d = 0; d < dim; d += 2 * LANES)
        dots[i] = add_products(dots[i], load_pairs(q + d), load_pairs(key + d));
    }
    const Floats block = sums(dots) * fill(scale);
    largest = max(largest, block);
    store(scores + t, block);
  }
  return largest_of(largest);
}

// scores become e^(score - largest), nought behind the last; returns their sum.
float weigh(float* scores, int64_t count, float largest) {
  Floats total = zeros();
  for (int64_t t = 0; t < count; t += LANES) {
    const Floats away = load(scores + t) - fill(largest);
    const Floats weight = keep(first(count - t), exp(away));
    store(scores + t, weight);
    total = total + weight;
  }
  return sum_of(total);
}

// HEADS heads' weighted values, PARTS vectors of dimensions: each value is read and widened once.
template <int HEADS, int PARTS>
void mix(const bf16* values, const int64_t* slots, int64_t count, int64_t dim, const float* weights, int64_t width,
         const float* totals, bf16* out) {
  Floats sum[HEADS][PARTS];
  for (auto& head : sum)
    for (auto& part : head) part = zeros();
  for (int64_t t = 0; t < count; t++) {
    const bf16* value = values + slots[t] * dim;
    Floats parts[PARTS];
    for (int i = 0; i < PARTS; i++) parts[i] = load(value + i * LANES);
    for (int h = 0; h < HEADS; h++) {
      const Floats weight = fill(weights[h * width + t]);
      for (int i = 0; i < PARTS; i++) sum[h][i] = fma(weight, parts[i], sum[h][i]);
    }
  }
  for (int h = 0; h < HEADS; h++)
    for (int i = 0; i < PARTS; i++)
      store(out + h * dim + i * LANES, sum[h][i] / fill(totals[h]));
}

template <int HEADS>
void mix_heads(const bf16* values, const int64_t* slots, int64_t count, int64_t dim, const float* weights,
               int64_t width, const float* totals, bf16* out) {
  int64_t d = 0;
  constexpr int MOST = sized(4, HEADS <= 3 ? 2 : 1), LEAST = std::min(MOST, 2);
  for (; d + MOST * LANES <= dim; d += MOST * LANES)
    mix<HEADS, MOST>(values + d, slots, count, dim, weights, width, totals, out + d);
  for (; d < dim; d += LEAST * LANES) mix<HEADS, LEAST>(values + d, slots, count, dim, weights, width, totals, out + d);
}

// Pages lie anywhere, which the CPU does not foresee: asking for all lines at once spares most of the wait for each.
// Inlined by force: GCC drops calls of a function that does nothing else.
[[gnu::always_inline]] inline void request(const bf16* held, const int64_t* slots, int64_t count, int64_t dim) {
  const int64_t most = std::min(count, REQUEST_BYTES / int64_t(dim * sizeof(bf16)));
  for (int64_t t = 0; t < most; t++)
    for (int64_t d = 0; d < dim; d += 2 * LANES)
      _mm_prefetch(reinterpret_cast<const char*>(held + slots[t] * dim + d), _MM_HINT_T1);
}

// One kv head of the single query in `row`, which sees slots[bounds[single]] to slots[bounds[single + 1]].
void attend_group(const Attend& call, int64_t single, int64_t row, int64_t kv_head) {
  static thread_local std::vector<float> scores, totals;
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  const int64_t* slots = call.slots + call.bounds[single];
  const int64_t count = call.bounds[single + 1] - call.bounds[single];
  const bf16* keys = call.kv + kv_head * call.num_slots * dim;
  const bf16* values = keys + call.kv_heads * call.num_slots * dim;
  const int64_t width = (count + LANES - 1) / LANES * LANES;
  request(keys, slots, count, dim);
  request(values, slots, count, dim);
  scores.resize(group * width);
  totals.resize(group);
  for (int64_t g = 0; g < group; g++) {
    const int64_t head = kv_head * group + g;
    float* own = scores.data() + g * width;
    float largest = score(call.q + row * call.q_row + head * dim, keys, slots, count, dim, call.scale, own);
    if (call.sinks) largest = std::max(largest, call.sinks[head]);
    totals[g] = weigh(own, count, largest) + (call.sinks ? std::exp(call.sinks[head] - largest) : 0.0f);
  }
  bf16* out = call.out + (row * call.heads + kv_head * group) * dim;
  int64_t g = 0;
  const auto rest = [&](auto function) {
    function(values, slots, count, dim, scores.data() + g * width, width, totals.data() + g, out + g * dim);
  };
  for (; g + 4 <= group; g += 4) rest(mix_heads<4>);
  for (; g + 3 <= group; g += 3) rest(mix_heads<3>);
  for (; g < group; g++) rest(mix_heads<1>);
}

}  // namespace
