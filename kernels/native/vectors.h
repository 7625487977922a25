// Numbers in vectors of 16: bf16 in memory, float32 in registers. The loops are written once, on the operations that
// avx512.h and avx2.h define alike: Floats are 16 float32, Pairs 16 pairs of bf16, a Mask says which lanes count.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include <immintrin.h>

namespace {

using bf16 = uint16_t;
constexpr int64_t LANES = 16;
// Keys and values below which one thread is done sooner than a second one has begun.
constexpr int64_t SERIAL_BYTES = 64 << 10;

}  // namespace

#ifdef __AVX512F__
#include "avx512.h"
#else
#include "avx2.h"
#endif

namespace {

// Of tiles' sizes the one whose sums fit the registers: AVX-512 has 32 of 16 numbers, AVX2 16 of 8.
constexpr int sized(int avx512, int avx2) { return REGISTERS == 32 ? avx512 : avx2; }

// Rows of the tallest tile.
constexpr int TALL = sized(8, 6);

inline Mask first(int64_t count) { return count >= LANES ? 0xffff : (1u << count) - 1; }

inline PairMask first_pairs(int64_t count) { return count >= 2 * LANES ? ~PairMask{0} : (PairMask{1} << count) - 1; }

// e^x to 2 units in the last place: 2^n times a polynomial of degree 6 in the rest.
inline Floats exp(Floats x) {
  x = min(fill(128.0f), max(fill(-128.0f), x));
  const Floats n = whole(x * fill(1.44269504f));
  Floats r = fnma(n, fill(0.693145752f), x);
  r = fnma(n, fill(1.42860677e-6f), r);
  Floats p = fill(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, fill(c));
  return times_power(p, n);
}

}  // namespace
