// Linear layers on packed weights: output columns in blocks of 16; a block holds its inputs by pairs, 16 columns side by
// side, so that one load of 32 weights meets one pair of inputs and no sum crosses lanes.

#pragma once

#include "team.h"
#include "vectors.h"

namespace {

// Output blocks of one row's tile, and of what a thread takes at a time.
constexpr int64_t UNIT = 6;

// Asks for the weights behind a tile's while its many rows compute; few rows wait for memory in any case.
template <int ROWS, int BLOCKS>
void request_next(const bf16* w, int64_t pairs, int64_t p) {
  if constexpr (ROWS >= sized(8, 2))
    for (int b = 0; b < BLOCKS; b++)
      _mm_prefetch(reinterpret_cast<const char*>(w + ((BLOCKS + b) * pairs + p) * 2 * LANES), _MM_HINT_T1);
}

// A row's sums run through its pairs in order, whatever the tile: the same bits beside any other rows. Inlined by force:
// in a function of its own the compiler writes every sum to memory at every pair, and needs 2.5 times as long.
template <int ROWS, int BLOCKS>
[[gnu::always_inline]] inline void product(const bf16* x, int64_t x_row, const bf16* w, int64_t pairs, Floats (&sum)[BLOCKS][ROWS]) {
  for (auto& block : sum)
    for (auto& value : block) value = zeros();
  for (int64_t p = 0; p < pairs; p++) {
    request_next<ROWS, BLOCKS>(w, pairs, p);
    Pairs weights[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) weights[b] = load_pairs(w + (b * pairs + p) * 2 * LANES);
    for (int r = 0; r < ROWS; r++) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_row + 2 * p, sizeof pair);
      const Pairs inputs = repeat(pair);
      for (int b = 0; b < BLOCKS; b++) sum[b][r] = add_products(sum[b][r], weights[b], inputs);
    }
  }
}

template <int ROWS, int BLOCKS>
[[gnu::always_inline]] inline void product(const float* x, int64_t x_row, const bf16* w, int64_t pairs, Floats (&sum)[BLOCKS][ROWS]) {
  for (auto& block : sum)
    for (auto& value : block) value = zeros();
  for (int64_t p = 0; p < pairs; p++) {
    request_next<ROWS, BLOCKS>(w, pairs, p);
    // Weights are loaded twice, for their halves in turn: more registers are left for sums.
    const auto half = [&](auto take, const float* inputs) {
      if constexpr (REGISTERS == 32) {
        Floats weights[BLOCKS];
        for (int b = 0; b < BLOCKS; b++) weights[b] = take(load_pairs(w + (b * pairs + p) * 2 * LANES));
        for (int r = 0; r < ROWS; r++) {
          const Floats input = fill(inputs[r * x_row]);
          for (int b = 0; b < BLOCKS; b++) sum[b][r] = fma(input, weights[b], sum[b][r]);
        }
      } else {  // one block's weights at a time: there are no registers for more
        for (int b = 0; b < BLOCKS; b++) {
          const Floats weight = take(load_pairs(w + (b * pairs + p) * 2 * LANES));
          for (int r = 0; r < ROWS; r++) sum[b][r] = fma(fill(inputs[r * x_row]), weight, sum[b][r]);
        }
      }
    };
    half(evens, x + 2 * p);
    half(odds, x + 2 * p + 1);
  }
}

// x as bf16, or widened beforehand: its type chooses the products.
template <typename X>
struct Linear {
  const X* x;
  const bf16 *w, *bias, *residual;
  bf16* out;
  int64_t x_row, inner, columns;
};

template <int ROWS, int BLOCKS, typename X>
void tile(const Linear<X>& call, int64_t row, int64_t block) {
  Floats sum[BLOCKS][ROWS];
  product<ROWS, BLOCKS>(call.x + row * call.x_row, call.x_row, call.w + block * LANES * call.inner, call.inner / 2, sum);
  for (int b = 0; b < BLOCKS; b++) {
    const int64_t column = (block + b) * LANES;
    const Mask mask = first(call.columns - column);
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = (row + r) * call.columns + column;
      Floats value = sum[b][r];
      if (call.bias) value = value + load(call.bias + column, mask);
      if (call.residual) value = value + load(call.residual + at, mask);
      store(call.out + at, value, mask);
    }
  }
}

template <int ROWS, typename X>
void rows_of(const Linear<X>& call, int64_t row, int64_t begin, int64_t end) {
  // As many sums as hide the products' latency and fit the registers.
  constexpr int SEVERAL = ROWS <= 4 ? 4 : sizeof(X) == sizeof(float) ? 3 : 2;
  constexpr int BLOCKS = ROWS == 1 ? UNIT : sized(SEVERAL, ROWS == 2 ? 3 : 1);
  int64_t block = begin;
  for (; block + BLOCKS <= end; block += BLOCKS) tile<ROWS, BLOCKS>(call, row, block);
  for (; block < end; block++) tile<ROWS, 1>(call, row, block);
}

template <typename X>
void all_rows(const Linear<X>& call, int64_t rows, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + TALL <= rows; row += TALL) rows_of<TALL>(call, row, begin, end);
  for (; row + 4 <= rows; row += 4) rows_of<4>(call, row, begin, end);
  for (; row + 2 <= rows; row += 2) rows_of<2>(call, row, begin, end);
  for (; row < rows; row++) rows_of<1>(call, row, begin, end);
}

template <typename X>
void linear(const Linear<X>& call, int64_t rows, int64_t threads) {
  const int64_t blocks = (call.columns + LANES - 1) / LANES, units = (blocks + UNIT - 1) / UNIT;
  // A few parts for each thread, so that one that was held up leaves its share to the others.
  const int64_t size = std::max<int64_t>(1, units / (threads * 4)) * UNIT;
  team::run((blocks + size - 1) / size, threads, [&](int64_t part) {
    all_rows(call, rows, part * size, std::min(blocks, (part + 1) * size));
  });
}

// Rows of x side by side in float32, on the calling thread's own ground until its next call.
inline const float* widen_rows(const bf16* x, int64_t x_row, int64_t rows, int64_t inner) {
  static thread_local std::vector<float> held;
  held.resize(rows * inner);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < inner; d += LANES) {
      const Mask mask = first(inner - d);
      store(held.data() + r * inner + d, load(x + r * x_row + d, mask), mask);
    }
  return held.data();
}

}  // namespace
