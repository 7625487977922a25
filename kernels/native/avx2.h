// vectors.h's operations on CPUs with AVX2, FMA and F16C: two registers of 8 numbers stand for 16. Sums run in the
// order of avx512.h's, so that results have the same bits.

#pragma once

namespace {

struct Floats {
  __m256 low, high;
};

struct Pairs {
  __m256i low, high;
};

using Mask = uint16_t;
using PairMask = uint32_t;
constexpr int REGISTERS = 16;

inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }

inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }

inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }

inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

inline Floats fill(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

// c - a * b.
inline Floats fnma(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

// All bits of those of 8 lanes that the lowest bits of a mask name.
inline __m256 lanes(uint32_t mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask), bits), bits));
}

// The larger in the mask's lanes, elsewhere a.
inline Floats max_in(Mask mask, Floats a, Floats b) {
  const Floats larger = max(a, b);
  return {_mm256_blendv_ps(a.low, larger.low, lanes(mask)), _mm256_blendv_ps(a.high, larger.high, lanes(mask >> 8))};
}

// Nought outside of the mask's lanes.
inline Floats keep(Mask mask, Floats x) {
  return {_mm256_and_ps(x.low, lanes(mask)), _mm256_and_ps(x.high, lanes(mask >> 8))};
}

inline float sum_of(Floats x) {
  const __m256 eight = _mm256_add_ps(x.high, x.low);
  const __m128 four = _mm_add_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(two) + _mm_cvtss_f32(_mm_movehdup_ps(two));
}

inline float largest_of(Floats x) {
  const __m256 eight = _mm256_max_ps(x.high, x.low);
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline float first_of(Floats x) { return _mm256_cvtss_f32(x.low); }

inline Floats whole(Floats x) { return {_mm256_round_ps(x.low, 8), _mm256_round_ps(x.high, 8)}; }

// x 2^n, n whole and within 2 * 126: in two steps, as one float cannot hold every such power.
inline __m256 times_power(__m256 x, __m256 n) {
  const __m256i all = _mm256_cvtps_epi32(n), some = _mm256_srai_epi32(all, 1), bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i m) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(m, bias), 23)); };
  return _mm256_mul_ps(_mm256_mul_ps(x, power(some)), power(_mm256_sub_epi32(all, some)));
}

inline Floats times_power(Floats x, Floats n) { return {times_power(x.low, n.low), times_power(x.high, n.high)}; }

inline __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }

inline Floats widen(__m256i x) { return {widen(_mm256_castsi256_si128(x)), widen(_mm256_extracti128_si256(x, 1))}; }

// A float's upper half in the lower: to the nearest, of two equally near ones to the even one; what is no number stays none.
inline __m256i narrow(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
  const __m256i up = _mm256_add_epi32(_mm256_and_si256(_mm256_srli_epi32(bits, 16), one), _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(_mm256_add_epi32(bits, up), quiet, none), 16);
}

inline __m256i narrow(Floats x) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(x.low), narrow(x.high)), 0xd8);
}

// Masks of loads and stores name the first lanes; what is missing to a vector is neither read nor written.
inline Floats load(const bf16* x, Mask mask = 0xffff) {
  const auto half = [](const bf16* at) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); };
  if (mask == 0xffff) [[likely]]
    return {half(x), half(x + 8)};
  bf16 held[LANES] = {};
  std::memcpy(held, x, std::popcount(mask) * sizeof(bf16));
  return {half(held), half(held + 8)};
}

inline Floats load(const float* x, Mask mask = 0xffff) {
  if (mask == 0xffff) [[likely]]
    return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
  return {_mm256_maskload_ps(x, _mm256_castps_si256(lanes(mask))),
          _mm256_maskload_ps(x + 8, _mm256_castps_si256(lanes(mask >> 8)))};
}

inline Pairs load_pairs(const void* x) {
  const auto* at = static_cast<const __m256i*>(x);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

inline Pairs load_pairs(const bf16* x, PairMask mask) {
  if (mask == ~PairMask{0}) [[likely]]
    return load_pairs(x);
  bf16 held[2 * LANES] = {};
  std::memcpy(held, x, std::popcount(mask) * sizeof(bf16));
  return load_pairs(held);
}

inline void store(bf16* x, Floats value, Mask mask = 0xffff) {
  const __m256i bits = narrow(value);
  if (mask == 0xffff) [[likely]]
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), bits);
  else
    std::memcpy(x, &bits, std::popcount(mask) * sizeof(bf16));
}

inline void store(float* x, Floats value, Mask mask = 0xffff) {
  if (mask == 0xffff) [[likely]] {
    _mm256_storeu_ps(x, value.low);
    _mm256_storeu_ps(x + 8, value.high);
  } else {
    std::memcpy(x, &value, std::popcount(mask) * sizeof(float));
  }
}

inline void store_pairs(void* x, Pairs value) {
  auto* at = static_cast<__m256i*>(x);
  _mm256_storeu_si256(at, value.low);
  _mm256_storeu_si256(at + 1, value.high);
}

inline Pairs repeat(int32_t pair) { return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)}; }

// A vector of pairs apart: each lane's first, and each lane's second.
inline Floats evens(Pairs pairs) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(pairs.high, 16))};
}

inline Floats odds(Pairs pairs) {
  const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs.low, upper)), _mm256_castsi256_ps(_mm256_and_si256(pairs.high, upper))};
}

// Of numbers in whose lower half nothing stands.
inline Pairs join(Floats even, Floats odd) {
  const auto half = [](__m256 a, __m256 b) {
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(a), 16), _mm256_castps_si256(b));
  };
  return {half(even.low, odd.low), half(even.high, odd.high)};
}

inline Floats add_products(Floats sum, Pairs a, Pairs b) {
  return fma(odds(a), odds(b), fma(evens(a), evens(b), sum));
}

inline Floats of_bytes(__m128i x) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

inline Floats of_halves(__m256i x) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

// Codes of 4 bits, eight a lane: J of 0 to 3 counts pairs, whose second is 16 bits above its first. With their uppermost
// bits turned they are whole numbers of two's complement, which a shift to the left and one back takes out.
struct NibbleCodes {
  static Pairs load_codes(const void* x) {
    const __m256i eights = _mm256_set1_epi32(int32_t(0x88888888));
    const Pairs codes = load_pairs(x);
    return {_mm256_xor_si256(codes.low, eights), _mm256_xor_si256(codes.high, eights)};
  }
  static Floats floats() { return zeros(); }
  static Pairs table() { return repeat(0); }
  template <int J, bool ODD>
  static Floats wide(Pairs codes, Floats) {
    const auto half = [](__m256i x) {
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 28 - 4 * J - (ODD ? 16 : 0)), 28));
    };
    return {half(codes.low), half(codes.high)};
  }
  template <int J>
  static Pairs pair(Pairs codes, Pairs) {
    return join(wide<J, false>(codes, zeros()), wide<J, true>(codes, zeros()));
  }
};

// Lane i of the result is the sum of a[i]'s lanes.
inline Floats sums(const Floats (&a)[LANES]) {
  const auto pairwise = [](__m256 x, __m256 y) { return _mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)); };
  const auto fourfold = [](__m256 x, __m256 y) {
    const __m256d p = _mm256_castps_pd(x), q = _mm256_castps_pd(y);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)), _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
  };
  const auto across = [](__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  };
  Floats c[4];
  for (int i = 0; i < 4; i++) {
    const Floats* of = a + 4 * i;
    c[i].low = fourfold(pairwise(of[0].low, of[1].low), pairwise(of[2].low, of[3].low));
    c[i].high = fourfold(pairwise(of[0].high, of[1].high), pairwise(of[2].high, of[3].high));
  }
  return {_mm256_add_ps(across(c[0].low, c[1].low), across(c[0].high, c[1].high)),
          _mm256_add_ps(across(c[2].low, c[3].low), across(c[2].high, c[3].high))};
}

// 8 rows of 8 numbers, transposed.
inline void transpose(__m256i (&r)[8]) {
  __m256i t[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int j = 0; j < 4; j++) {
    t[j] = _mm256_permute2x128_si256(r[j], r[4 + j], 0x20);
    t[4 + j] = _mm256_permute2x128_si256(r[j], r[4 + j], 0x31);
  }
  for (int i = 0; i < 8; i++) r[i] = t[i];
}

// 16 rows of 16 numbers, transposed.
inline void transpose(Pairs (&r)[16]) {
  __m256i quarter[2][2][8];
  for (int i = 0; i < 8; i++) {
    quarter[0][0][i] = r[i].low, quarter[0][1][i] = r[i].high;
    quarter[1][0][i] = r[8 + i].low, quarter[1][1][i] = r[8 + i].high;
  }
  for (auto& half : quarter)
    for (auto& block : half) transpose(block);
  for (int i = 0; i < 8; i++) {
    r[i] = {quarter[0][0][i], quarter[1][0][i]};
    r[8 + i] = {quarter[0][1][i], quarter[1][1][i]};
  }
}

constexpr bool widened() { return true; }

constexpr bool widen_products(bool) { return true; }

}  // namespace
