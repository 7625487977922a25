// Numbers in vectors of 16: bf16 in memory, float32 in registers.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <immintrin.h>

namespace {

using bf16 = uint16_t;
constexpr int64_t LANES = 16;
// Keys and values below which one thread is done sooner than a second one has begun.
constexpr int64_t SERIAL_BYTES = 64 << 10;

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

// A vector of pairs apart: each lane's first, and each lane's second.
inline __m512 evens(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 odds(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))));
}

// Whether products are float32's on widened numbers, not BF16's own. Intel's cores (Sapphire Rapids, measured) begin a
// vdpbf16ps every second cycle and two vfmadd231ps in each, AMD's (Zen 4) as many of the one as of the other.
inline bool& widened() {
  static bool held = __builtin_cpu_is("intel");
  return held;
}

}  // namespace
