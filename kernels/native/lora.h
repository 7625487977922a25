// Multi-LoRA row by row: each row of a batch with its own adapter's ranks, wherever they lie.

#pragma once

namespace {

// Columns of the output that are summed in registers.
constexpr int SUMS = 8;
// Dot products that a thread takes at a time, and weights below which a second thread is not worth waking.
constexpr int64_t DOTS = 16;

// One slice: target t adds b_rows[bags[t]] to b_rows[bags[t + 1]], the last up to `count`.
struct LoraSlice {
  int64_t piece, column, width, first, count, targets;
  const int32_t *b_rows, *bags;
  const int64_t* rows;
};

constexpr int64_t MOST_SLICES = 8;

struct LoraProducts {
  int64_t count, slices;
  const int32_t *a_rows, *owner;
  LoraSlice slice[MOST_SLICES];
};

template <typename T>
struct LoraMatrices {
  int64_t inner;
  const T* a;
  const T* b[MOST_SLICES];
};

inline __m512 load(const float* x, __mmask16 mask = 0xffff) { return _mm512_maskz_loadu_ps(mask, x); }

inline void store(float* x, __m512 value, __mmask16 mask = 0xffff) { _mm512_mask_storeu_ps(x, mask, value); }

float dot(const float* x, const float* y, int64_t size) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  int64_t d = 0;
  for (; d + 4 * LANES <= size; d += 4 * LANES)
    for (int i = 0; i < 4; i++) sum[i] = _mm512_fmadd_ps(load(x + d + LANES * i), load(y + d + LANES * i), sum[i]);
  for (; d < size; d += LANES)
    sum[0] = _mm512_fmadd_ps(load(x + d, first(size - d)), load(y + d, first(size - d)), sum[0]);
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

float dot(const bf16* x, const bf16* y, int64_t size) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  const auto pairs = [&](int64_t d) {
    const __mmask32 mask = size - d >= 2 * LANES ? ~__mmask32{0} : (__mmask32{1} << (size - d)) - 1;
    return std::pair((__m512bh)_mm512_maskz_loadu_epi16(mask, x + d), (__m512bh)_mm512_maskz_loadu_epi16(mask, y + d));
  };
  int64_t d = 0;
  for (; d + 8 * LANES <= size; d += 8 * LANES)
    for (int i = 0; i < 4; i++)
      sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_loadu_si512(x + d + 2 * LANES * i),
                                (__m512bh)_mm512_loadu_si512(y + d + 2 * LANES * i));
  for (; d < size; d += 2 * LANES) {
    const auto [a, b] = pairs(d);
    sum[0] = _mm512_dpbf16_ps(sum[0], a, b);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

// out[column..] += sum of weights[j] * b[rows[j]][column..], rounded once; up to SUMS vectors of columns.
template <typename T>
void add_rows(T* out, const T* b, int64_t width, const int32_t* rows, const float* weights, int64_t count,
              int64_t columns) {
  __m512 sum[SUMS];
  __mmask16 mask[SUMS];
  for (int i = 0; i < SUMS; i++) {
    const int64_t left = columns - i * LANES;
    mask[i] = left <= 0 ? 0 : first(left);
    sum[i] = _mm512_setzero_ps();
  }
  for (int64_t j = 0; j < count; j++) {
    const T* row = b + int64_t{rows[j]} * width;
    const __m512 weight = _mm512_set1_ps(weights[j]);
    for (int i = 0; i < SUMS; i++) sum[i] = _mm512_fmadd_ps(weight, load(row + i * LANES, mask[i]), sum[i]);
  }
  for (int i = 0; i < SUMS; i++)
    store(out + i * LANES, _mm512_add_ps(load(out + i * LANES, mask[i]), sum[i]), mask[i]);
}

template <typename T>
void lora(const LoraProducts* products, const LoraMatrices<T>* matrices, const T* x, int64_t x_row, T* out,
          int64_t out_row, int64_t threads) {
  static thread_local std::vector<float> held;
  held.resize(products->count);
  float* const shrunk = held.data();
  const int64_t inner = matrices->inner;
  if (products->count * inner * int64_t{sizeof(T)} <= SERIAL_BYTES) threads = 1;
  team::run((products->count + DOTS - 1) / DOTS, threads, [&](int64_t part) {
    for (int64_t i = part * DOTS; i < std::min(products->count, (part + 1) * DOTS); i++)
      shrunk[i] = dot(x + products->owner[i] * x_row, matrices->a + int64_t{products->a_rows[i]} * inner, inner);
  });
  int64_t starts[MOST_SLICES + 1] = {0};
  constexpr int64_t BLOCK = SUMS * LANES;
  for (int64_t s = 0; s < products->slices; s++) {
    const LoraSlice& slice = products->slice[s];
    starts[s + 1] = starts[s] + slice.targets * ((slice.width + BLOCK - 1) / BLOCK);
  }
  team::run(starts[products->slices], threads, [&](int64_t part) {
    int64_t s = 0;
    while (part >= starts[s + 1]) s++;
    const LoraSlice& slice = products->slice[s];
    const int64_t blocks = (slice.width + BLOCK - 1) / BLOCK, target = (part - starts[s]) / blocks;
    const int64_t column = (part - starts[s]) % blocks * BLOCK, begin = slice.bags[target];
    const int64_t end = target + 1 < slice.targets ? slice.bags[target + 1] : slice.count;
    add_rows(out + slice.rows[target] * out_row + slice.column + column, matrices->b[slice.piece] + column,
             slice.width, slice.b_rows + begin, shrunk + slice.first + begin, end - begin,
             std::min(BLOCK, slice.width - column));
  });
}

}  // namespace

extern "C" {

// Adds every row's adapter to its slices of out; x is [rows, inner].
void graft_lora(const LoraProducts* products, const LoraMatrices<bf16>* matrices, const bf16* x, int64_t x_row,
                bf16* out, int64_t out_row, int64_t threads) {
  lora(products, matrices, x, x_row, out, out_row, threads);
}

void graft_lora_fp32(const LoraProducts* products, const LoraMatrices<float>* matrices, const float* x, int64_t x_row,
                     float* out, int64_t out_row, int64_t threads) {
  lora(products, matrices, x, x_row, out, out_row, threads);
}
}
