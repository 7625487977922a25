// Decode steps in bf16 on CPUs with AVX-512 and its BF16 products. Plain C functions on pointers: no header of
// PyTorch's, so that it compiles in seconds and fits any version. Sums are float32, rounded once at the end.
// Strides and sizes are in elements. README.md tells what was measured.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <immintrin.h>

#include "team.h"

namespace {

using bf16 = uint16_t;
constexpr int64_t LANES = 16;
// Output blocks of one row's tile, and of what a thread takes at a time.
constexpr int64_t UNIT = 6;
// Keys and values below which one thread is done sooner than a second one has begun.
constexpr int64_t SERIAL_BYTES = 64 << 10;
// Of keys, and of values, that are asked for ahead: with the weights in flight, what a core's cache holds.
constexpr int64_t REQUEST_BYTES = 128 << 10;

inline __mmask16 first(int64_t count) { return count >= LANES ? 0xffff : (1u << count) - 1; }

inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

inline __m512 load(const bf16* x, __mmask16 mask = 0xffff) { return widen(_mm256_maskz_loadu_epi16(mask, x)); }

inline void store(bf16* x, __m512 value, __mmask16 mask = 0xffff) {
  _mm256_mask_storeu_epi16(x, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

// e^x to 2 units in the last place: 2^n times a polynomial of degree 6 in the rest.
inline __m512 exp(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(128.0f), _mm512_max_ps(_mm512_set1_ps(-128.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

// Output columns in blocks of 16; a block holds its inputs by pairs, 16 columns side by side: one load of 32
// weights meets one pair of inputs, and no sum crosses lanes.
template <int ROWS, int BLOCKS>
void product(const bf16* x, int64_t x_row, const bf16* w, int64_t pairs, __m512 (&sum)[BLOCKS][ROWS]) {
  for (auto& block : sum)
    for (auto& value : block) value = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; p++) {
    __m512bh weights[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) weights[b] = (__m512bh)_mm512_loadu_si512(w + (b * pairs + p) * 2 * LANES);
    for (int r = 0; r < ROWS; r++) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_row + 2 * p, sizeof pair);
      const auto inputs = (__m512bh)_mm512_set1_epi32(pair);
      for (int b = 0; b < BLOCKS; b++) sum[b][r] = _mm512_dpbf16_ps(sum[b][r], weights[b], inputs);
    }
  }
}

struct Linear {
  const bf16 *x, *w, *bias, *residual;
  bf16* out;
  int64_t x_row, inner, columns;
};

template <int ROWS, int BLOCKS>
void tile(const Linear& call, int64_t row, int64_t block) {
  __m512 sum[BLOCKS][ROWS];
  product<ROWS, BLOCKS>(call.x + row * call.x_row, call.x_row, call.w + block * LANES * call.inner, call.inner / 2, sum);
  for (int b = 0; b < BLOCKS; b++) {
    const int64_t column = (block + b) * LANES;
    const __mmask16 mask = first(call.columns - column);
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = (row + r) * call.columns + column;
      __m512 value = sum[b][r];
      if (call.bias) value = _mm512_add_ps(value, load(call.bias + column, mask));
      if (call.residual) value = _mm512_add_ps(value, load(call.residual + at, mask));
      store(call.out + at, value, mask);
    }
  }
}

template <int ROWS>
void rows_of(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  // As many sums as hide the products' latency and fit the registers.
  constexpr int BLOCKS = ROWS == 1 ? UNIT : ROWS <= 4 ? 4 : 2;
  int64_t block = begin;
  for (; block + BLOCKS <= end; block += BLOCKS) tile<ROWS, BLOCKS>(call, row, block);
  for (; block < end; block++) tile<ROWS, 1>(call, row, block);
}

void all_rows(const Linear& call, int64_t rows, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) rows_of<8>(call, row, begin, end);
  for (; row + 4 <= rows; row += 4) rows_of<4>(call, row, begin, end);
  for (; row + 2 <= rows; row += 2) rows_of<2>(call, row, begin, end);
  for (; row < rows; row++) rows_of<1>(call, row, begin, end);
}

struct Attend {
  const bf16 *q, *kv;
  const int64_t *slots, *bounds;
  const float* sinks;
  bf16* out;
  int64_t q_row, heads, kv_heads, head_dim, num_slots;
  float scale;
};

// Lane i of the result is the sum of a[i]'s lanes.
inline __m512 sums(const __m512 (&a)[LANES]) {
  __m512 b[8], c[4], d[2];
  for (int i = 0; i < 8; i++)
    b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
  for (int i = 0; i < 4; i++) {
    const __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
    c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  for (int i = 0; i < 2; i++)
    d[i] = _mm512_add_ps(_mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(d[0], d[1], 0x88), _mm512_shuffle_f32x4(d[0], d[1], 0xdd));
}

// scores[t] = scale * q . key of slots[t]; returns the largest. `scores` has room for whole vectors.
float score(const bf16* q, const bf16* keys, const int64_t* slots, int64_t count, int64_t dim, float scale,
            float* scores) {
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t t = 0; t < count; t += LANES) {
    __m512 dots[LANES];
    for (int64_t i = 0; i < LANES; i++) {
      const bf16* key = keys + slots[std::min(t + i, count - 1)] * dim;
      dots[i] = _mm512_setzero_ps();
      for (int64_t d = 0; d < dim; d += 2 * LANES)
        dots[i] = _mm512_dpbf16_ps(dots[i], (__m512bh)_mm512_loadu_si512(q + d), (__m512bh)_mm512_loadu_si512(key + d));
    }
    const __m512 block = _mm512_mul_ps(sums(dots), _mm512_set1_ps(scale));
    largest = _mm512_max_ps(largest, block);
    _mm512_storeu_ps(scores + t, block);
  }
  return _mm512_reduce_max_ps(largest);
}

// scores become e^(score - largest), nought behind the last; returns their sum.
float weigh(float* scores, int64_t count, float largest) {
  __m512 total = _mm512_setzero_ps();
  for (int64_t t = 0; t < count; t += LANES) {
    const __m512 away = _mm512_sub_ps(_mm512_loadu_ps(scores + t), _mm512_set1_ps(largest));
    const __m512 weight = _mm512_maskz_mov_ps(first(count - t), exp(away));
    _mm512_storeu_ps(scores + t, weight);
    total = _mm512_add_ps(total, weight);
  }
  return _mm512_reduce_add_ps(total);
}

// HEADS heads' weighted values, PARTS vectors of dimensions: each value is read and widened once.
template <int HEADS, int PARTS>
void mix(const bf16* values, const int64_t* slots, int64_t count, int64_t dim, const float* weights, int64_t width,
         const float* totals, bf16* out) {
  __m512 sum[HEADS][PARTS];
  for (auto& head : sum)
    for (auto& part : head) part = _mm512_setzero_ps();
  for (int64_t t = 0; t < count; t++) {
    const bf16* value = values + slots[t] * dim;
    __m512 parts[PARTS];
    for (int i = 0; i < PARTS; i++) parts[i] = load(value + i * LANES);
    for (int h = 0; h < HEADS; h++) {
      const __m512 weight = _mm512_set1_ps(weights[h * width + t]);
      for (int i = 0; i < PARTS; i++) sum[h][i] = _mm512_fmadd_ps(weight, parts[i], sum[h][i]);
    }
  }
  for (int h = 0; h < HEADS; h++)
    for (int i = 0; i < PARTS; i++)
      store(out + h * dim + i * LANES, _mm512_div_ps(sum[h][i], _mm512_set1_ps(totals[h])));
}

template <int HEADS>
void mix_heads(const bf16* values, const int64_t* slots, int64_t count, int64_t dim, const float* weights,
               int64_t width, const float* totals, bf16* out) {
  int64_t d = 0;
  for (; d + 4 * LANES <= dim; d += 4 * LANES)
    mix<HEADS, 4>(values + d, slots, count, dim, weights, width, totals, out + d);
  for (; d < dim; d += 2 * LANES) mix<HEADS, 2>(values + d, slots, count, dim, weights, width, totals, out + d);
}

// Pages lie anywhere, which the CPU does not foresee: asking for all lines at once spares most of the wait for each.
// Inlined by force: GCC drops calls of a function that does nothing else.
[[gnu::always_inline]] inline void request(const bf16* held, const int64_t* slots, int64_t count, int64_t dim) {
  const int64_t most = std::min(count, REQUEST_BYTES / int64_t(dim * sizeof(bf16)));
  for (int64_t t = 0; t < most; t++)
    for (int64_t d = 0; d < dim; d += 2 * LANES)
      _mm_prefetch(reinterpret_cast<const char*>(held + slots[t] * dim + d), _MM_HINT_T1);
}

// One kv head of one sequence, with all the heads that it serves.
void attend_group(const Attend& call, int64_t row, int64_t kv_head) {
  static thread_local std::vector<float> scores, totals;
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  const int64_t *slots = call.slots + call.bounds[row], count = call.bounds[row + 1] - call.bounds[row];
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

#include "lora.h"

extern "C" {

// out [rows, columns] = x W^T (+ bias) (+ residual); w is packed, inner is even.
void graft_linear(const bf16* x, int64_t x_row, const bf16* w, const bf16* bias, const bf16* residual, bf16* out,
                  int64_t rows, int64_t inner, int64_t columns, int64_t threads) {
  const Linear call{x, w, bias, residual, out, x_row, inner, columns};
  const int64_t blocks = (columns + LANES - 1) / LANES, units = (blocks + UNIT - 1) / UNIT;
  // A few parts for each thread, so that one that was held up leaves its share to the others.
  const int64_t size = std::max<int64_t>(1, units / (threads * 4)) * UNIT;
  team::run((blocks + size - 1) / size, threads, [&](int64_t part) {
    all_rows(call, rows, part * size, std::min(blocks, (part + 1) * size));
  });
}

// Row r of head h: x / sqrt(mean(x^2) + eps) * weight[h]. Rows of the hidden size are one head each.
void graft_rms_norm(const bf16* x, int64_t x_row, const float* weight, bf16* out, int64_t out_row, int64_t rows,
                    int64_t heads, int64_t width, float eps) {
  for (int64_t i = 0; i < rows * heads; i++) {
    const int64_t head = i % heads;
    const bf16* from = x + i / heads * x_row + head * width;
    bf16* to = out + i / heads * out_row + head * width;
    __m512 squares = _mm512_setzero_ps();
    for (int64_t d = 0; d < width; d += LANES) {
      const __m512 value = load(from + d, first(width - d));
      squares = _mm512_fmadd_ps(value, value, squares);
    }
    const __m512 scale = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares) / width + eps));
    for (int64_t d = 0; d < width; d += LANES) {
      const __mmask16 mask = first(width - d);
      const __m512 gain = _mm512_maskz_loadu_ps(mask, weight + head * width + d);
      store(to + d, _mm512_mul_ps(_mm512_mul_ps(load(from + d, mask), scale), gain), mask);
    }
  }
}

// Pair (i, i + turned / 2) of each head, in place; cos and signed sin are [rows, turned].
void graft_rotate(bf16* x, int64_t x_row, const bf16* cos, const bf16* sin, int64_t rows, int64_t heads,
                  int64_t head_dim, int64_t turned) {
  const int64_t half = turned / 2;
  for (int64_t i = 0; i < rows * heads; i++) {
    bf16* head = x + i / heads * x_row + i % heads * head_dim;
    const bf16 *c = cos + i / heads * turned, *s = sin + i / heads * turned;
    for (int64_t d = 0; d < half; d += LANES) {
      const __mmask16 mask = first(half - d);
      const __m512 a = load(head + d, mask), b = load(head + half + d, mask);
      store(head + d, _mm512_fmadd_ps(a, load(c + d, mask), _mm512_mul_ps(b, load(s + d, mask))), mask);
      store(head + half + d,
            _mm512_fmadd_ps(b, load(c + half + d, mask), _mm512_mul_ps(a, load(s + half + d, mask))), mask);
    }
  }
}

// silu(gate) * up of [rows, 2 * inner].
void graft_silu_gated(const bf16* gate_up, bf16* out, int64_t rows, int64_t inner) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t d = 0; d < inner; d += LANES) {
      const __mmask16 mask = first(inner - d);
      const bf16* from = gate_up + row * 2 * inner + d;
      const __m512 gate = load(from, mask), up = load(from + inner, mask);
      const __m512 fall = _mm512_add_ps(_mm512_set1_ps(1), exp(_mm512_sub_ps(_mm512_setzero_ps(), gate)));
      store(out + row * inner + d, _mm512_mul_ps(_mm512_div_ps(gate, fall), up), mask);
    }
}

// What a step's layers have in common. Row r sees slots[bounds[r]] to slots[bounds[r + 1]]; its own key and value go
// to own[r]. Angles are [rows, turned]. Keys and values are [2 (keys, then values), kv_heads, num_slots, head_dim],
// head_dim a multiple of 32.
struct Step {
  const int64_t *slots, *bounds, *own;
  const bf16 *cos, *sin;
  int64_t rows, heads, kv_heads, head_dim, turned, num_slots, threads;
  float scale;
};

// One query a sequence: q is [rows, heads, head_dim] of row stride q_row; sinks may be null.
void graft_attend(const Step* step, const bf16* q, int64_t q_row, const bf16* kv, const float* sinks, bf16* out) {
  const Attend call{q,     kv,          step->slots,    step->bounds,   sinks,           out,
                    q_row, step->heads, step->kv_heads, step->head_dim, step->num_slots, step->scale};
  const int64_t bytes = step->bounds[step->rows] * step->kv_heads * step->head_dim * 4;
  team::run(step->rows * step->kv_heads, bytes <= SERIAL_BYTES ? 1 : step->threads,
            [&](int64_t item) { attend_group(call, item / step->kv_heads, item % step->kv_heads); });
}

// qkv is [rows, heads + 2 * kv_heads, head_dim], contiguous: turns queries and keys in place, stores keys and values,
// attends.
void graft_decode(const Step* step, bf16* qkv, bf16* kv, bf16* out) {
  const int64_t dim = step->head_dim, row = (step->heads + 2 * step->kv_heads) * dim;
  graft_rotate(qkv, row, step->cos, step->sin, step->rows, step->heads + step->kv_heads, dim, step->turned);
  for (int64_t r = 0; r < step->rows; r++)
    for (int64_t h = 0; h < 2 * step->kv_heads; h++)
      std::memcpy(kv + (h * step->num_slots + step->own[r]) * dim, qkv + r * row + (step->heads + h) * dim,
                  dim * sizeof(bf16));
  graft_attend(step, qkv, row, kv, nullptr, out);
}
}
