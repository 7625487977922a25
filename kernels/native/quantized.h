// Linear layers on weights of 4 or 8 bits: w = (code - zero) * scale, scale and zero by group of inputs and column. Codes
// are whole numbers that bf16 holds exactly; their products with x are summed in float32 within a group, then scaled, and
// zeros enter by the group's sum of x: no weight is rounded. Blocks are of 16 outputs, as in linear.h.

#pragma once

#include "linear.h"

namespace {

// Rows from which codes are widened once for all of them, six blocks at a time, instead of once a tile.
constexpr int64_t WIDEN_ONCE_ROWS = 16;

// A layer's weights. Of 16 bits, codes are linear.h's packed bf16 and the rest is unused; of 4 and 8 bits, scales are
// [blocks, groups, 16] of fp16 (`half`) or bf16, zeros the same of int8, null where all are nought.
struct Matrix {
  const void* codes;
  const uint16_t* scales;
  const int8_t* zeros;
  int64_t bits, group, half;
};

// [blocks, inner / 8, 16] of 32 bits: a column's inputs 0, 2, 4, 6 in the lower half's nibbles, 1, 3, 5, 7 in the upper's.
struct Nibbles {
  static constexpr int PAIRS = 4;
  using Raw = __m512i;
  const uint8_t* at;
  int64_t block;

  static __m512i table() {  // of 16 bits by the lowest 5 of an index: what lies above a nibble does not count
    const __m512i once = _mm512_castps_si512(floats());
    const __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)once);
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
  }
  static __m512 floats() {
    return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  Raw raw(int64_t b, int64_t step) const { return _mm512_loadu_si512(at + b * block + step * 64); }
  template <int J>
  static __m512i pair(Raw raw, __m512i table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(raw, 4 * J), table);
  }
  template <int J, bool ODD>
  static __m512 wide(Raw raw, __m512 floats) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(raw, 4 * J + (ODD ? 16 : 0)), floats);
  }
};

// [blocks, inner / 2, 2, 16] of 8 bits, signed.
struct Bytes {
  static constexpr int PAIRS = 1;
  using Raw = __m256i;
  const uint8_t* at;
  int64_t block;

  static __m512i table() { return _mm512_setzero_si512(); }
  static __m512 floats() { return _mm512_setzero_ps(); }
  Raw raw(int64_t b, int64_t step) const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + b * block + step * 32));
  }
  template <int J, bool ODD>
  static __m512 wide(Raw raw, __m512) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(ODD ? _mm256_extracti128_si256(raw, 1) : _mm256_castsi256_si128(raw)));
  }
  template <int J>
  static __m512i pair(Raw raw, __m512i) {  // whole numbers up to 256: nothing stands in a float's lower half
    const __m512i even = _mm512_castps_si512(wide<J, false>(raw, floats())), odd = _mm512_castps_si512(wide<J, true>(raw, floats()));
    return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
  }
};

// Codes that were widened to bf16 beforehand, laid out as linear.h's weights.
struct Widened {
  static constexpr int PAIRS = 1;
  using Raw = __m512i;
  const uint8_t* at;
  int64_t block;

  static __m512i table() { return _mm512_setzero_si512(); }
  static __m512 floats() { return _mm512_setzero_ps(); }
  Raw raw(int64_t b, int64_t step) const { return _mm512_loadu_si512(at + b * block + step * 64); }
  template <int J>
  static __m512i pair(Raw raw, __m512i) { return raw; }
  template <int J, bool ODD>
  static __m512 wide(Raw raw, __m512) { return ODD ? odds(raw) : evens(raw); }
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

inline __m512 load_scale(const uint16_t* at, bool half) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return half ? _mm512_cvtph_ps(raw) : widen(raw);
}

// A pair of inputs with the weights of all blocks.
template <int ROWS, int BLOCKS, int J, typename Codes>
[[gnu::always_inline]] inline void add_pair(const bf16* x, int64_t x_row, const typename Codes::Raw (&raw)[BLOCKS], __m512i table,
                                            __m512, __m512 (&sum)[BLOCKS][ROWS]) {
  __m512bh weights[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) weights[b] = (__m512bh)Codes::template pair<J>(raw[b], table);
  for (int r = 0; r < ROWS; r++) {
    int32_t pair;
    std::memcpy(&pair, x + r * x_row, sizeof pair);
    const auto inputs = (__m512bh)_mm512_set1_epi32(pair);
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = _mm512_dpbf16_ps(sum[b][r], weights[b], inputs);
  }
}

template <int ROWS, int BLOCKS, int J, typename Codes>
[[gnu::always_inline]] inline void add_pair(const float* x, int64_t x_row, const typename Codes::Raw (&raw)[BLOCKS], __m512i,
                                            __m512 floats, __m512 (&sum)[BLOCKS][ROWS]) {
  __m512 weights[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) weights[b] = Codes::template wide<J, false>(raw[b], floats);
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * x_row]), weights[b], sum[b][r]);
  for (int b = 0; b < BLOCKS; b++) weights[b] = Codes::template wide<J, true>(raw[b], floats);
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < BLOCKS; b++) sum[b][r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * x_row + 1]), weights[b], sum[b][r]);
}

// What a tile's rows and blocks sum to over inputs [begin, end): the order is the same whatever the tile.
template <int ROWS, int BLOCKS, typename Codes, typename X>
[[gnu::always_inline]] inline void sum_group(const X* x, int64_t x_row, const Codes& codes, int64_t begin, int64_t end,
                                             __m512 (&sum)[BLOCKS][ROWS]) {
  const __m512i table = Codes::table();
  const __m512 floats = Codes::floats();
  for (auto& block : sum)
    for (auto& value : block) value = _mm512_setzero_ps();
  constexpr int64_t STEP = 2 * Codes::PAIRS;
  for (int64_t d = begin; d < end; d += STEP) {
    typename Codes::Raw raw[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) raw[b] = codes.raw(b, d / STEP);
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
  __m512 total[BLOCKS][ROWS];
  for (auto& each : total)
    for (auto& value : each) value = _mm512_setzero_ps();
  for (int64_t g = 0; g < call.groups; g++) {
    __m512 sum[BLOCKS][ROWS];
    sum_group<ROWS, BLOCKS>(call.x + row * call.x_row, call.x_row, codes, g * call.group, (g + 1) * call.group, sum);
    for (int b = 0; b < BLOCKS; b++) {
      const int64_t at = ((block + b) * call.groups + g) * LANES;
      const __m512 scale = load_scale(call.matrix->scales + at, call.matrix->half);
      for (int r = 0; r < ROWS; r++) total[b][r] = _mm512_fmadd_ps(sum[b][r], scale, total[b][r]);
      if (!call.sums) continue;
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(call.matrix->zeros + at));
      const __m512 zero = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw)), scale);
      for (int r = 0; r < ROWS; r++)
        total[b][r] = _mm512_fnmadd_ps(zero, _mm512_set1_ps(call.sums[(row + r) * call.groups + g]), total[b][r]);
    }
  }
  for (int b = 0; b < BLOCKS; b++) {
    const int64_t column = (block + b) * LANES;
    const __mmask16 mask = first(call.columns - column);
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = (row + r) * call.columns + column;
      __m512 value = total[b][r];
      if (call.bias) value = _mm512_add_ps(value, load(call.bias + column, mask));
      if (call.residual) value = _mm512_add_ps(value, load(call.residual + at, mask));
      store(call.out + at, value, mask);
    }
  }
}

// Blocks [begin, end), whose codes begin at `codes`.
template <int ROWS, typename X, typename Codes>
void quantized_rows(const Quantized<X>& call, const Codes& codes, int64_t row, int64_t begin, int64_t end) {
  constexpr int BLOCKS = ROWS == 1 ? UNIT : ROWS <= 4 ? 4 : 2;
  int64_t block = begin;
  const auto from = [&](int64_t b) { return Codes{codes.at + (b - begin) * codes.block, codes.block}; };
  for (; block + BLOCKS <= end; block += BLOCKS) quantized_tile<ROWS, BLOCKS>(call, from(block), row, block);
  for (; block < end; block++) quantized_tile<ROWS, 1>(call, from(block), row, block);
}

template <typename X, typename Codes>
void quantized_blocks(const Quantized<X>& call, const Codes& codes, int64_t rows, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) quantized_rows<8>(call, codes, row, begin, end);
  for (; row + 4 <= rows; row += 4) quantized_rows<4>(call, codes, row, begin, end);
  for (; row + 2 <= rows; row += 2) quantized_rows<2>(call, codes, row, begin, end);
  for (; row < rows; row++) quantized_rows<1>(call, codes, row, begin, end);
}

// The codes of blocks as bf16, on the calling thread's own ground until its next call.
template <typename Codes>
Widened widen_codes(const Codes& codes, int64_t blocks, int64_t inner) {
  static thread_local std::vector<bf16> held;
  held.resize(blocks * inner * LANES);
  const __m512i table = Codes::table();
  constexpr int64_t STEP = 2 * Codes::PAIRS;
  for (int64_t b = 0; b < blocks; b++) {
    bf16* to = held.data() + b * inner * LANES;
    for (int64_t d = 0; d < inner; d += STEP, to += STEP * LANES) {
      const auto raw = codes.raw(b, d / STEP);
      _mm512_storeu_si512(to, Codes::template pair<0>(raw, table));
      if constexpr (Codes::PAIRS == 4) {
        _mm512_storeu_si512(to + 2 * LANES, Codes::template pair<1>(raw, table));
        _mm512_storeu_si512(to + 4 * LANES, Codes::template pair<2>(raw, table));
        _mm512_storeu_si512(to + 6 * LANES, Codes::template pair<3>(raw, table));
      }
    }
  }
  return Widened{reinterpret_cast<const uint8_t*>(held.data()), inner * LANES * int64_t{sizeof(bf16)}};
}

template <typename Codes, typename X>
void quantized(const Quantized<X>& call, int64_t rows, int64_t block_bytes, int64_t threads) {
  const int64_t blocks = (call.columns + LANES - 1) / LANES, units = (blocks + UNIT - 1) / UNIT;
  const int64_t size = std::max<int64_t>(1, units / (threads * 4)) * UNIT;
  const uint8_t* const codes = static_cast<const uint8_t*>(call.matrix->codes);
  team::run((blocks + size - 1) / size, threads, [&](int64_t part) {
    const int64_t last = std::min(blocks, (part + 1) * size);
    if (rows < WIDEN_ONCE_ROWS) {
      const int64_t begin = part * size;
      quantized_blocks(call, Codes{codes + begin * block_bytes, block_bytes}, rows, begin, last);
      return;
    }
    for (int64_t begin = part * size; begin < last; begin += UNIT) {
      const int64_t end = std::min(last, begin + UNIT);
      const Codes own{codes + begin * block_bytes, block_bytes};
      quantized_blocks(call, widen_codes(own, end - begin, call.inner), rows, begin, end);
    }
  });
}

// By row and group, in one order whatever the rows beside it.
inline const float* group_sums(const bf16* x, int64_t x_row, int64_t rows, int64_t inner, int64_t group) {
  static thread_local std::vector<float> held;
  held.resize(rows * (inner / group));
  float* to = held.data();
  for (int64_t r = 0; r < rows; r++)
    for (int64_t begin = 0; begin < inner; begin += group) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t d = 0; d < group; d += LANES)
        sum = _mm512_add_ps(sum, load(x + r * x_row + begin + d, first(group - d)));
      *to++ = _mm512_reduce_add_ps(sum);
    }
  return held.data();
}

template <typename X>
void quantized_by_bits(const Quantized<X>& call, int64_t rows, int64_t threads) {
  const int64_t inner = call.inner;
  if (call.matrix->bits == 4)
    quantized<Nibbles>(call, rows, inner * LANES / 2, threads);
  else
    quantized<Bytes>(call, rows, inner * LANES, threads);
}

}  // namespace
