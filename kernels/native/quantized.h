// Linear layers on weights of 4 or 8 bits: w = (code - zero) * scale, scale and zero by group of inputs and column. Codes
// are whole numbers that bf16 holds exactly; their products with x are summed in float32 within a group, then scaled, and
// zeros enter by the group's sum of x: no weight is rounded. Blocks are of 16 outputs, as in linear.h.

#pragma once

#include "linear.h"

namespace {

// Rows from which codes are widened once for all of them, six blocks at a time, instead of once a tile, where that pays:
// AVX-512 with float32's products. Elsewhere what is written and read again costs more (README.md of kernels/quantization has the
// figures).
template <typename X>
constexpr int64_t WIDEN_ONCE_ROWS = sizeof(X) == sizeof(float) ? sized(64, INT32_MAX) : INT32_MAX;

// A layer's weights. Of 16 bits, codes are linear.h's packed bf16 and the rest is unused; of 4 and 8 bits, scales are
// [blocks, groups, 16] of fp16 (`half`) or bf16, zeros the same of int8, null where all are nought.
struct Matrix {
  const void* codes;
  const uint16_t* scales;
  const int8_t* zeros;
  int64_t bits, group, half;
};

// [blocks, inner / 8, 16] of 32 bits: a column's inputs 0, 2, 4, 6 in the lower half's nibbles, 1, 3, 5, 7 in the upper's.
struct Nibbles : NibbleCodes {
  static constexpr int PAIRS = 4;
  static constexpr bool STREAMED = true;
  using Raw = Pairs;
  const uint8_t* at;
  int64_t block;

  Nibbles(const uint8_t* at, int64_t block) : at(at), block(block) {}
  Raw raw(int64_t b, int64_t step) const { return load_codes(at + b * block + step * 64); }
};

// [blocks, inner / 2, 2, 16] of 8 bits, signed.
struct Bytes {
  static constexpr int PAIRS = 1;
  static constexpr bool STREAMED = true;
  using Raw = __m256i;
  const uint8_t* at;
  int64_t block;

  static Pairs table() { return repeat(0); }
  static Floats floats() { return zeros(); }
  Raw raw(int64_t b, int64_t step) const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + b * block + step * 32));
  }
  template <int J, bool ODD>
  static Floats wide(Raw raw, Floats) {
    return of_bytes(ODD ? _mm256_extracti128_si256(raw, 1) : _mm256_castsi256_si128(raw));
  }
  template <int J>
  static Pairs pair(Raw raw, Pairs) {  // whole numbers up to 256: nothing stands in a float's lower half
    return join(wide<J, false>(raw, floats()), wide<J, true>(raw, floats()));
  }
};

// Codes that were widened to bf16 beforehand, laid out as linear.h's weights.
struct Widened {
  static constexpr int PAIRS = 1;
  static constexpr bool STREAMED = false;  // they lie in the core's own cache
  using Raw = Pairs;
  const uint8_t* at;
  int64_t block;

  static Pairs table() { return repeat(0); }
  static Floats floats() { return zeros(); }
  Raw raw(int64_t b, int64_t step) const { return load_pairs(at + b * block + step * 64); }
  template <int J>
  static Pairs pair(Raw raw, Pairs) { return raw; }
  template <int J, bool ODD>
  static Floats wide(Raw raw, Floats) { return ODD ? odds(raw) : evens(raw); }
};

template <typename X>
struct Quantized {
  const X* x;
  const float* sums;  // of x by row and group; null without zeros
  const Matrix* matrix;
  const bf16 *bias, *residual;
  bf16* out;
  int64_t x_row, inner, columns, group, groups;
};

inline Floats load_scale(const uint16_t* at, bool half) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return half ? of_halves(raw) : widen(raw);
}

// A pair of inputs with the weights of all blocks.
template <int ROWS, int BLOCKS, int J, typename Codes>
[[gnu::always_inline]] inline void add_pair(const bf16* x, int64_t x_row, const typename Codes::Raw (&raw)[BLOCKS], Pairs table,
                                            Floats, Floats (&sum)[BLOCKS][ROWS]) {
  Pairs weights[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) weights[b] = Codes::template pair<J>(raw[b], table);
  for (int r = 0; r < ROWS; r++) {
    int32_t pair;
    std::memcpy(&pair, x + r * x_row, sizeof pair);
    const Pairs inputs = repeat(pair);
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = add_products(sum[b][r], weights[b], inputs);
  }
}

template <int ROWS, int BLOCKS, int J, typename Codes>
[[gnu::always_inline]] inline void add_pair(const float* x, int64_t x_row, const typename Codes::Raw (&raw)[BLOCKS], Pairs,
                                            Floats floats, Floats (&sum)[BLOCKS][ROWS]) {
  Floats weights[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) weights[b] = Codes::template wide<J, false>(raw[b], floats);
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = fma(fill(x[r * x_row]), weights[b], sum[b][r]);
  for (int b = 0; b < BLOCKS; b++) weights[b] = Codes::template wide<J, true>(raw[b], floats);
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = fma(fill(x[r * x_row + 1]), weights[b], sum[b][r]);
}

// Asks for the codes behind a tile's while these are widened, which takes about as long as memory takes to give as many: a
// block is a few pages, too short for what the CPU fetches ahead by itself. Inlined by force: GCC takes a function that does
// nothing else for one without effect, and drops its calls.
template <int BLOCKS, typename Codes>
[[gnu::always_inline]] inline void request_behind(const Codes& codes, int64_t step) {
  if constexpr (Codes::STREAMED)
    for (int b = 0; b < BLOCKS; b++) {
      const uint8_t* const next = codes.at + (BLOCKS + b) * codes.block + step * int64_t{sizeof(typename Codes::Raw)};
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    }
}

// What a tile's rows and blocks sum to over inputs [begin, end): the order is the same whatever the tile.
template <int ROWS, int BLOCKS, typename Codes, typename X>
[[gnu::always_inline]] inline void sum_group(const X* x, int64_t x_row, const Codes& codes, int64_t begin, int64_t end,
                                             Floats (&sum)[BLOCKS][ROWS]) {
  const Pairs table = Codes::table();
  const Floats floats = Codes::floats();
  for (auto& block : sum)
    for (auto& value : block) value = zeros();
  constexpr int64_t STEP = 2 * Codes::PAIRS;
  for (int64_t d = begin; d < end; d += STEP) {
    typename Codes::Raw raw[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) raw[b] = codes.raw(b, d / STEP);
    request_behind<BLOCKS>(codes, d / STEP);
    add_pair<ROWS, BLOCKS, 0, Codes>(x + d, x_row, raw, table, floats, sum);
    if constexpr (Codes::PAIRS == 4) {
      add_pair<ROWS, BLOCKS, 1, Codes>(x + d + 2, x_row, raw, table, floats, sum);
      add_pair<ROWS, BLOCKS, 2, Codes>(x + d + 4, x_row, raw, table, floats, sum);
      add_pair<ROWS, BLOCKS, 3, Codes>(x + d + 6, x_row, raw, table, floats, sum);
    }
  }
}

template <int ROWS, int BLOCKS, typename X, typename Codes>
void quantized_tile(const Quantized<X>& call, const Codes& codes, int64_t row, int64_t block) {
  Floats total[BLOCKS][ROWS];
  for (auto& each : total)
    for (auto& value : each) value = zeros();
  for (int64_t g = 0; g < call.groups; g++) {
    Floats sum[BLOCKS][ROWS];
    sum_group<ROWS, BLOCKS>(call.x + row * call.x_row, call.x_row, codes, g * call.group, (g + 1) * call.group, sum);
    for (int b = 0; b < BLOCKS; b++) {
      const int64_t at = ((block + b) * call.groups + g) * LANES;
      const Floats scale = load_scale(call.matrix->scales + at, call.matrix->half);
      for (int r = 0; r < ROWS; r++) total[b][r] = fma(sum[b][r], scale, total[b][r]);
      if (!call.sums) continue;
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(call.matrix->zeros + at));
      const Floats zero = of_bytes(raw) * scale;
      for (int r = 0; r < ROWS; r++)
        total[b][r] = fnma(zero, fill(call.sums[(row + r) * call.groups + g]), total[b][r]);
    }
  }
  for (int b = 0; b < BLOCKS; b++) {
    const int64_t column = (block + b) * LANES;
    const Mask mask = first(call.columns - column);
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = (row + r) * call.columns + column;
      Floats value = total[b][r];
      if (call.bias) value = value + load(call.bias + column, mask);
      if (call.residual) value = value + load(call.residual + at, mask);
      store(call.out + at, value, mask);
    }
  }
}

// Blocks [begin, end), whose codes begin at `codes`.
template <int ROWS, typename X, typename Codes>
void quantized_rows(const Quantized<X>& call, const Codes& codes, int64_t row, int64_t begin, int64_t end) {
  constexpr int BLOCKS = ROWS == 1 ? sized(UNIT, 2) : sized(ROWS <= 4 ? 4 : 2, ROWS == 2 ? 2 : 1);
  int64_t block = begin;
  const auto from = [&](int64_t b) { return Codes{codes.at + (b - begin) * codes.block, codes.block}; };
  for (; block + BLOCKS <= end; block += BLOCKS) quantized_tile<ROWS, BLOCKS>(call, from(block), row, block);
  for (; block < end; block++) quantized_tile<ROWS, 1>(call, from(block), row, block);
}

template <typename X, typename Codes>
void quantized_blocks(const Quantized<X>& call, const Codes& codes, int64_t rows, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + TALL <= rows; row += TALL) quantized_rows<TALL>(call, codes, row, begin, end);
  for (; row + 4 <= rows; row += 4) quantized_rows<4>(call, codes, row, begin, end);
  for (; row + 2 <= rows; row += 2) quantized_rows<2>(call, codes, row, begin, end);
  for (; row < rows; row++) quantized_rows<1>(call, codes, row, begin, end);
}

// The codes of blocks as bf16, on the calling thread's own ground until its next call.
template <typename Codes>
Widened widen_codes(const Codes& codes, int64_t blocks, int64_t inner) {
  static thread_local std::vector<bf16> held;
  held.resize(blocks * inner * LANES);
  const Pairs table = Codes::table();
  constexpr int64_t STEP = 2 * Codes::PAIRS;
  for (int64_t b = 0; b < blocks; b++) {
    bf16* to = held.data() + b * inner * LANES;
    for (int64_t d = 0; d < inner; d += STEP, to += STEP * LANES) {
      const auto raw = codes.raw(b, d / STEP);
      store_pairs(to, Codes::template pair<0>(raw, table));
      if constexpr (Codes::PAIRS == 4) {
        store_pairs(to + 2 * LANES, Codes::template pair<1>(raw, table));
        store_pairs(to + 4 * LANES, Codes::template pair<2>(raw, table));
        store_pairs(to + 6 * LANES, Codes::template pair<3>(raw, table));
      }
    }
  }
  return Widened{reinterpret_cast<const uint8_t*>(held.data()), inner * LANES * int64_t{sizeof(bf16)}};
}

// Blocks [begin, end); those of many rows are widened UNIT at a time.
template <typename Codes, typename X>
void quantized_part(const Quantized<X>& call, int64_t rows, int64_t block_bytes, int64_t begin, int64_t end) {
  const uint8_t* const codes = static_cast<const uint8_t*>(call.matrix->codes);
  if (rows < WIDEN_ONCE_ROWS<X>) {
    quantized_blocks(call, Codes{codes + begin * block_bytes, block_bytes}, rows, begin, end);
    return;
  }
  for (; begin < end; begin += UNIT) {
    const int64_t last = std::min(end, begin + UNIT);
    const Codes own{codes + begin * block_bytes, block_bytes};
    quantized_blocks(call, widen_codes(own, last - begin, call.inner), rows, begin, last);
  }
}

template <typename X>
void quantized_by_bits(const Quantized<X>& call, int64_t rows, int64_t begin, int64_t end) {
  if (call.matrix->bits == 4)
    quantized_part<Nibbles>(call, rows, call.inner * LANES / 2, begin, end);
  else
    quantized_part<Bytes>(call, rows, call.inner * LANES, begin, end);
}

template <typename X>
void quantized(const Quantized<X>& call, int64_t rows, int64_t threads) {
  const int64_t blocks = (call.columns + LANES - 1) / LANES, units = (blocks + UNIT - 1) / UNIT;
  const int64_t size = std::max<int64_t>(1, units / (threads * 4)) * UNIT;
  team::run((blocks + size - 1) / size, threads, [&](int64_t part) {
    quantized_by_bits(call, rows, part * size, std::min(blocks, (part + 1) * size));
  });
}

// By row and group, in one order whatever the rows beside it.
template <typename X>
const float* group_sums(const X* x, int64_t x_row, int64_t rows, int64_t inner, int64_t group) {
  static thread_local std::vector<float> held;
  held.resize(rows * (inner / group));
  float* to = held.data();
  for (int64_t r = 0; r < rows; r++)
    for (int64_t begin = 0; begin < inner; begin += group) {
      Floats sum = zeros();
      for (int64_t d = 0; d < group; d += LANES)
        sum = sum + load(x + r * x_row + begin + d, first(group - d));
      *to++ = sum_of(sum);
    }
  return held.data();
}

}  // namespace
