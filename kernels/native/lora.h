// Multi-LoRA: each row of a batch with its own adapter's ranks, read where the adapter was loaded. Rows that share an
// adapter share what is read of it; a row's sums run in one order, whatever the tile: the same bits beside any other rows.

#pragma once

#include "rows.h"

namespace {

// Rows, ranks and columns of the output that a thread takes at a time.
constexpr int64_t TAKEN_ROWS = 32;
constexpr int64_t TAKEN_RANKS = 8;
constexpr int64_t TAKEN_COLUMNS = 256;

// One adapter in one slice: rows[row] to rows[row + count] of the batch, and `ranks` rows of the A and the B that lie at
// `place`. Shrunk values are [count, ranks] from `shrunk` on.
struct LoraPart {
  int64_t row, count, ranks, shrunk, place, column, width;
};

struct LoraProducts {
  int64_t parts, shrunk;
  const LoraPart* part;
  const int64_t* rows;
};

// By place: A [ranks, inner] and B [ranks, width], each in one piece.
template <typename T>
struct LoraPlace {
  const T *a, *b;
};

template <typename T>
struct LoraWeights {
  int64_t inner;
  const LoraPlace<T>* places;
};

// x as weights are that are taken apart: of every 32 numbers the even ones, then the odd ones; noughts behind the last.
inline const float* take_apart(const bf16* x, int64_t x_row, int64_t rows, int64_t inner, int64_t padded, int64_t threads) {
  static thread_local std::vector<float> held;
  held.resize(rows * padded);
  float* const apart = held.data();
  by_rows(rows, inner, threads, [=](int64_t row) {
    for (int64_t d = 0; d < inner; d += 2 * LANES) {
      const Pairs pairs = load_pairs(x + row * x_row + d, first_pairs(inner - d));
      store(apart + row * padded + d, evens(pairs));
      store(apart + row * padded + d + LANES, odds(pairs));
    }
  });
  return apart;
}

// Asks for what is multiplied next: each adapter's weights lie elsewhere, and its one row or two wait for memory else.
template <typename T>
inline void request(const T* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
}

// shrunk[r][j] = x[r] . a[j], for ROWS rows and RANKS ranks, of float32: sums of PIECE inputs are summed, since what a long
// sum loses grows with its length. Inlined by force, as the products of linear.h.
template <int ROWS, int RANKS>
[[gnu::always_inline]] inline void shrink(const float* const* x, const float* const* a, const float*, int64_t inner, float* shrunk,
                                          int64_t ranks) {
  constexpr int64_t PIECE = 16 * LANES;
  Floats total[ROWS][RANKS];
  for (auto& row : total)
    for (auto& value : row) value = zeros();
  for (int64_t begin = 0; begin < inner; begin += PIECE) {
    Floats sum[ROWS][RANKS];
    for (auto& row : sum)
      for (auto& value : row) value = zeros();
    for (int64_t d = begin; d < std::min(inner, begin + PIECE); d += LANES) {
      const Mask mask = first(inner - d);
      Floats weights[RANKS];
      for (int j = 0; j < RANKS; j++) weights[j] = load(a[j] + d, mask);
      for (int r = 0; r < ROWS; r++) {
        const Floats input = load(x[r] + d, mask);
        for (int j = 0; j < RANKS; j++) sum[r][j] = fma(input, weights[j], sum[r][j]);
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int j = 0; j < RANKS; j++) total[r][j] = total[r][j] + sum[r][j];
  }
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < RANKS; j++) shrunk[r * ranks + j] = sum_of(total[r][j]);
}

// The same of bf16, whose own rounding is coarser than any sum's.
template <int ROWS, int RANKS, typename X>
[[gnu::always_inline]] inline void shrink(const X* const* x, const bf16* const* a, const bf16* ahead, int64_t inner, float* shrunk,
                                          int64_t ranks) {
  Floats sum[ROWS][RANKS];
  for (auto& row : sum)
    for (auto& value : row) value = zeros();
  for (int64_t d = 0; d < inner; d += 2 * LANES) {
    const PairMask mask = first_pairs(inner - d);
    Pairs weights[RANKS];
    for (int j = 0; j < RANKS; j++) weights[j] = load_pairs(a[j] + d, mask);
    for (int j = 0; j < RANKS; j++) request(ahead + d * RANKS + j * 2 * LANES);
    if constexpr (sizeof(X) == sizeof(float)) {
      const auto half = [&](auto take, int64_t at) {
        Floats taken[RANKS];
        for (int j = 0; j < RANKS; j++) taken[j] = take(weights[j]);
        for (int r = 0; r < ROWS; r++) {
          const Floats input = load(x[r] + at);
          for (int j = 0; j < RANKS; j++) sum[r][j] = fma(input, taken[j], sum[r][j]);
        }
      };
      half(evens, d);
      half(odds, d + LANES);
    } else {
      for (int r = 0; r < ROWS; r++) {
        const Pairs input = load_pairs(x[r] + d, mask);
        for (int j = 0; j < RANKS; j++) sum[r][j] = add_products(sum[r][j], input, weights[j]);
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < RANKS; j++) shrunk[r * ranks + j] = sum_of(sum[r][j]);
}

template <int ROWS, typename X, typename T>
void shrink_rows(const X* const* x, const T* const* a, const T* ahead, int64_t count, int64_t inner, float* shrunk,
                 int64_t ranks) {
  constexpr int RANKS = sized(ROWS == 1 ? 8 : 4, 4 / ROWS);
  int64_t j = 0;
  for (; j + RANKS <= count; j += RANKS) shrink<ROWS, RANKS>(x, a + j, ahead + j * inner, inner, shrunk + j, ranks);
  for (; j < count; j++) shrink<ROWS, 1>(x, a + j, ahead + j * inner, inner, shrunk + j, ranks);
}

// out[r][..] += sum of weights[r][j] * b[j][..], rounded once.
template <int ROWS, typename T>
void add_ranks(T* const* out, const T* b, const T* ahead, int64_t ahead_width, int64_t width, const float* weights, int64_t ranks,
               int64_t columns) {
  constexpr int SUMS = sized(ROWS == 1 ? 8 : 4, 4 / ROWS);
  for (int64_t c = 0; c < columns; c += SUMS * LANES) {
    Floats sum[ROWS][SUMS];
    Mask mask[SUMS];
    for (int i = 0; i < SUMS; i++) {
      mask[i] = first(std::max<int64_t>(0, columns - c - i * LANES));
      for (int r = 0; r < ROWS; r++) sum[r][i] = zeros();
    }
    for (int64_t j = 0; j < ranks; j++) {
      const T* row = b + j * width + c;
      Floats part[SUMS];
      for (int i = 0; i < SUMS; i++) part[i] = load(row + i * LANES, mask[i]);
      for (int i = 0; i < SUMS; i += 64 / (LANES * sizeof(T))) request(ahead + j * ahead_width + c + i * LANES);
      for (int r = 0; r < ROWS; r++) {
        const Floats weight = fill(weights[r * ranks + j]);
        for (int i = 0; i < SUMS; i++) sum[r][i] = fma(weight, part[i], sum[r][i]);
      }
    }
// By force: as loops, GCC 12 keeps every sum in memory where it inlines this.
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int i = 0; i < SUMS; i++) {
        T* const to = out[r] + c + i * LANES;
        store(to, load(to, mask[i]) + sum[r][i], mask[i]);
      }
  }
}

// Calls function(part, item of the part, a later part, its item) for each of `count(part)` items of every part; the later
// one is what this thread comes to next, where all are as fast.
template <typename Count, typename Function>
void by_parts(const LoraProducts& products, int64_t threads, const Count& count, const Function& function) {
  static thread_local std::vector<int64_t> held;
  held.assign(products.parts + 1, 0);
  int64_t* const ends = held.data();
  for (int64_t p = 0; p < products.parts; p++) ends[p + 1] = ends[p] + count(products.part[p]);
  team::run(ends[products.parts], threads, [&, ends](int64_t item) {
    const auto part_of = [&](int64_t at) { return std::upper_bound(ends, ends + products.parts, at) - ends - 1; };
    const int64_t p = part_of(item), later = std::min(item + threads, ends[products.parts] - 1), q = part_of(later);
    function(products.part[p], item - ends[p], products.part[q], later - ends[q]);
  });
}

constexpr int64_t pieces(int64_t size, int64_t taken) { return (size + taken - 1) / taken; }

// shrunk = x A^T of every part's rows.
template <typename X, typename T>
void shrink_parts(const LoraProducts& products, const LoraWeights<T>& weights, const X* x, int64_t x_row, float* shrunk,
                  int64_t threads) {
  const int64_t inner = weights.inner;
  by_parts(
      products, threads,
      [](const LoraPart& part) { return pieces(part.count, TAKEN_ROWS) * pieces(part.ranks, TAKEN_RANKS); },
      [&](const LoraPart& part, int64_t item, const LoraPart& later, int64_t later_item) {
        const int64_t sets = pieces(part.ranks, TAKEN_RANKS), j = item % sets * TAKEN_RANKS;
        const int64_t count = std::min(TAKEN_RANKS, part.ranks - j);
        const T* a[TAKEN_RANKS];
        for (int64_t i = 0; i < count; i++) a[i] = weights.places[part.place].a + (j + i) * inner;
        const T* const ahead = weights.places[later.place].a + later_item % pieces(later.ranks, TAKEN_RANKS) * TAKEN_RANKS * inner;
        int64_t r = item / sets * TAKEN_ROWS;
        const int64_t end = std::min(part.count, r + TAKEN_ROWS);
        const X* own[TAKEN_ROWS];
        for (int64_t i = r; i < end; i++) own[i - r] = x + products.rows[part.row + i] * x_row;
        const X* const* from = own;
        float* to = shrunk + part.shrunk + r * part.ranks + j;
        const auto rest = [&](auto function, int64_t rows) {
          function(from, a, ahead, count, inner, to, part.ranks);
          from += rows, to += rows * part.ranks, r += rows;
        };
        while (r + 4 <= end) rest(shrink_rows<4, X, T>, 4);
        while (r + 2 <= end) rest(shrink_rows<2, X, T>, 2);
        while (r < end) rest(shrink_rows<1, X, T>, 1);
      });
}

// Adds `count` rows of a part to `to`, of which each begins at the column that `b` and `ahead` begin at.
template <typename T>
void expand_rows(T* const* to, int64_t count, const LoraPart& part, const T* b, const float* shrunk, int64_t columns,
                 const T* ahead, int64_t ahead_width) {
  int64_t r = 0;
  const auto rest = [&](auto function, int64_t rows) {
    function(to + r, b, ahead, ahead_width, part.width, shrunk + r * part.ranks, part.ranks, columns);
    r += rows;
  };
  while (r + 4 <= count) rest(add_ranks<4, T>, 4);
  while (r + 2 <= count) rest(add_ranks<2, T>, 2);
  while (r < count) rest(add_ranks<1, T>, 1);
}

template <typename X, typename T>
void lora(const LoraProducts& products, const LoraWeights<T>& weights, const X* x, int64_t x_row, T* out,
          int64_t out_row, int64_t threads) {
  static thread_local std::vector<float> held;
  held.resize(products.shrunk);
  float* const shrunk = held.data();
  shrink_parts(products, weights, x, x_row, shrunk, threads);
  by_parts(
      products, threads,
      [](const LoraPart& part) { return pieces(part.count, TAKEN_ROWS) * pieces(part.width, TAKEN_COLUMNS); },
      [&](const LoraPart& part, int64_t item, const LoraPart& later, int64_t later_item) {
        const int64_t blocks = pieces(part.width, TAKEN_COLUMNS), column = item % blocks * TAKEN_COLUMNS;
        const int64_t columns = std::min(TAKEN_COLUMNS, part.width - column);
        const T* const ahead = weights.places[later.place].b + later_item % pieces(later.width, TAKEN_COLUMNS) * TAKEN_COLUMNS;
        const int64_t r = item / blocks * TAKEN_ROWS, count = std::min(part.count - r, TAKEN_ROWS);
        T* own[TAKEN_ROWS];
        for (int64_t i = 0; i < count; i++)
          own[i] = out + products.rows[part.row + r + i] * out_row + part.column + column;
        expand_rows(own, count, part, weights.places[part.place].b + column, shrunk + part.shrunk + r * part.ranks, columns,
                    ahead, later.width);
      });
}

// Products below which a second thread is not worth waking.
template <typename T>
int64_t lora_threads(const LoraProducts& products, const LoraWeights<T>& weights, int64_t threads) {
  return products.shrunk * weights.inner * int64_t{sizeof(T)} <= SERIAL_BYTES ? 1 : threads;
}

struct MoeLora;

// A layer's adapters in its linear layers qkv, o, gate_up and down, null where nobody changes one. `products` are the
// batch's, by layout, of which layers share few. `moe` are those of a layer of experts, or null.
struct LayerLora {
  const LoraPlace<bf16>* places[4];
  int64_t layout[4];
  const MoeLora* moe;
};

}  // namespace

extern "C" {

// Adds every row's adapter to its slices of out; x is [rows, inner].
void graft_lora(const LoraProducts* products, const LoraWeights<bf16>* weights, const bf16* x, int64_t x_row,
                bf16* out, int64_t out_row, int64_t rows, int64_t threads) {
  threads = lora_threads(*products, *weights, threads);
  if (widened()) {
    const int64_t padded = pieces(weights->inner, 2 * LANES) * 2 * LANES;
    lora(*products, *weights, take_apart(x, x_row, rows, weights->inner, padded, threads), padded, out, out_row, threads);
  } else {
    lora(*products, *weights, x, x_row, out, out_row, threads);
  }
}

void graft_lora_fp32(const LoraProducts* products, const LoraWeights<float>* weights, const float* x, int64_t x_row,
                     float* out, int64_t out_row, int64_t rows, int64_t threads) {
  lora(*products, *weights, x, x_row, out, out_row, lora_threads(*products, *weights, threads));
}
}
