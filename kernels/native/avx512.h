// vectors.h's operations on CPUs with AVX-512, with or without its BF16 instructions.

#pragma once

namespace {

using Floats = __m512;
using Pairs = __m512i;
using Mask = __mmask16;
using PairMask = __mmask32;
constexpr int REGISTERS = 32;

inline Floats zeros() { return _mm512_setzero_ps(); }

inline Floats fill(float x) { return _mm512_set1_ps(x); }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

// c - a * b.
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }

inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }

// The larger in the mask's lanes, elsewhere a.
inline Floats max_in(Mask mask, Floats a, Floats b) { return _mm512_mask_max_ps(a, mask, a, b); }

// Nought outside of the mask's lanes.
inline Floats keep(Mask mask, Floats x) { return _mm512_maskz_mov_ps(mask, x); }

inline float sum_of(Floats x) { return _mm512_reduce_add_ps(x); }

inline float largest_of(Floats x) { return _mm512_reduce_max_ps(x); }

inline float first_of(Floats x) { return _mm512_cvtss_f32(x); }

inline Floats whole(Floats x) { return _mm512_roundscale_ps(x, 8); }

// x 2^n, n whole.
inline Floats times_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

inline Floats widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

// A vector of pairs apart: each lane's first, and each lane's second.
inline Floats evens(Pairs pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline Floats odds(Pairs pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))));
}

#ifdef __AVX512BF16__
inline __m256i narrow(Floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }

inline Floats add_products(Floats sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
#else
// To the nearest, of two equally near ones to the even one; what is no number stays none.
inline __m256i narrow(Floats x) {
  const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
  const __m512i up = _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(bits, 16), one), _mm512_set1_epi32(0x7fff));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(_mm512_add_epi32(bits, up), none, quiet), 16));
}

inline Floats add_products(Floats sum, Pairs a, Pairs b) {
  return fma(odds(a), odds(b), fma(evens(a), evens(b), sum));
}
#endif

inline Floats load(const bf16* x, Mask mask = 0xffff) { return widen(_mm256_maskz_loadu_epi16(mask, x)); }

inline Floats load(const float* x) { return _mm512_loadu_ps(x); }

inline Floats load(const float* x, Mask mask) { return _mm512_maskz_loadu_ps(mask, x); }

inline Pairs load_pairs(const void* x) { return _mm512_loadu_si512(x); }

inline Pairs load_pairs(const bf16* x, PairMask mask) { return _mm512_maskz_loadu_epi16(mask, x); }

inline void store(bf16* x, Floats value, Mask mask = 0xffff) { _mm256_mask_storeu_epi16(x, mask, narrow(value)); }

inline void store(float* x, Floats value) { _mm512_storeu_ps(x, value); }

inline void store(float* x, Floats value, Mask mask) { _mm512_mask_storeu_ps(x, mask, value); }

inline void store_pairs(void* x, Pairs value) { _mm512_storeu_si512(x, value); }

inline Pairs repeat(int32_t pair) { return _mm512_set1_epi32(pair); }

// Of numbers in whose lower half nothing stands.
inline Pairs join(Floats even, Floats odd) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
}

inline Floats of_bytes(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }

inline Floats of_halves(__m256i x) { return _mm512_cvtph_ps(x); }

// Codes of 4 bits, eight a lane: J of 0 to 3 counts pairs, whose second is 16 bits above its first.
struct NibbleCodes {
  static Pairs load_codes(const void* x) { return _mm512_loadu_si512(x); }
  static Floats floats() {
    return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  static Pairs table() {  // of 16 bits by the lowest 5 of an index: what lies above a nibble does not count
    const __m512i once = _mm512_castps_si512(floats());
    const __m256i half = narrow((__m512)once);
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
  }
  template <int J>
  static Pairs pair(Pairs codes, Pairs table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * J), table);
  }
  template <int J, bool ODD>
  static Floats wide(Pairs codes, Floats floats) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * J + (ODD ? 16 : 0)), floats);
  }
};

// Lane i of the result is the sum of a[i]'s lanes.
inline Floats sums(const Floats (&a)[LANES]) {
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

// 16 rows of 16 numbers, transposed.
inline void transpose(Pairs (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int j = 0; j < 4; j++) {
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    t[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
  for (int i = 0; i < 16; i++) r[i] = t[i];
}

#ifdef __AVX512BF16__
// Whether products are float32's on widened numbers, not BF16's own. Intel's cores (Sapphire Rapids, measured) begin a
// vdpbf16ps every second cycle and two vfmadd231ps in each, AMD's (Zen 4) as many of the one as of the other.
inline bool& widened() {
  static bool held = __builtin_cpu_is("intel");
  return held;
}

inline bool widen_products(bool widen) { return std::exchange(widened(), widen); }
#else
constexpr bool widened() { return true; }

constexpr bool widen_products(bool) { return true; }
#endif

}  // namespace
