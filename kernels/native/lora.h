// Multi-LoRA: each row of a batch with its own adapter's ranks, wherever they lie. Rows that share an adapter share
// what is read of it; a row's sums run in one order, whatever the tile: the same bits beside any other rows.

#pragma once

#include "rows.h"

namespace {

// Rows, ranks and columns of the output that a thread takes at a time.
constexpr int64_t TAKEN_ROWS = 32;
constexpr int64_t TAKEN_RANKS = 8;
constexpr int64_t TAKEN_COLUMNS = 256;

// One adapter in one slice: rows[row] to rows[row + count] of the batch, and `ranks` rows of A and of B, whose numbers
// begin at `rank`. Shrunk values are [count, ranks] from `shrunk` on.
struct LoraPart {
  int64_t row, count, rank, ranks, shrunk, piece, column, width;
};

struct LoraProducts {
  int64_t parts, shrunk;
  const LoraPart* part;
  const int64_t* rows;
  const int32_t *a_rows, *b_rows;
};

constexpr int64_t MOST_SLICES = 8;

template <typename T>
struct LoraMatrices {
  int64_t inner;
  const T* a;
  const T* b[MOST_SLICES];
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

// shrunk[r][j] = x[r] . a[j], for ROWS rows and RANKS ranks, of float32: sums of PIECE inputs are summed, since what a long
// sum loses grows with its length. Inlined by force, as the products of linear.h.
template <int ROWS, int RANKS>
[[gnu::always_inline]] inline void shrink(const float* const* x, const float* const* a, int64_t inner, float* shrunk, int64_t ranks) {
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
[[gnu::always_inline]] inline void shrink(const X* const* x, const bf16* const* a, int64_t inner, float* shrunk, int64_t ranks) {
  Floats sum[ROWS][RANKS];
  for (auto& row : sum)
    for (auto& value : row) value = zeros();
  for (int64_t d = 0; d < inner; d += 2 * LANES) {
    const PairMask mask = first_pairs(inner - d);
    Pairs weights[RANKS];
    for (int j = 0; j < RANKS; j++) weights[j] = load_pairs(a[j] + d, mask);
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
void shrink_rows(const X* const* x, const T* const* a, int64_t count, int64_t inner, float* shrunk, int64_t ranks) {
  constexpr int RANKS = sized(ROWS == 1 ? 8 : 4, 4 / ROWS);
  int64_t j = 0;
  for (; j + RANKS <= count; j += RANKS) shrink<ROWS, RANKS>(x, a + j, inner, shrunk + j, ranks);
  for (; j < count; j++) shrink<ROWS, 1>(x, a + j, inner, shrunk + j, ranks);
}

// out[r][..] += sum of weights[r][j] * b[rows[j]][..], rounded once.
template <int ROWS, typename T>
void add_ranks(T* const* out, const T* b, int64_t width, const int32_t* rows, const float* weights, int64_t ranks,
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
      const T* row = b + int64_t{rows[j]} * width + c;
      Floats part[SUMS];
      for (int i = 0; i < SUMS; i++) part[i] = load(row + i * LANES, mask[i]);
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

// Calls function(part, item of the part) for each of `count(part)` items of every part.
template <typename Count, typename Function>
void by_parts(const LoraProducts& products, int64_t threads, const Count& count, const Function& function) {
  static thread_local std::vector<int64_t> held;
  held.assign(products.parts + 1, 0);
  int64_t* const ends = held.data();
  for (int64_t p = 0; p < products.parts; p++) ends[p + 1] = ends[p] + count(products.part[p]);
  team::run(ends[products.parts], threads, [&, ends](int64_t item) {
    const int64_t p = std::upper_bound(ends, ends + products.parts, item) - ends - 1;
    function(products.part[p], item - ends[p]);
  });
}

constexpr int64_t pieces(int64_t size, int64_t taken) { return (size + taken - 1) / taken; }

template <typename X, typename T>
void lora(const LoraProducts& products, const LoraMatrices<T>& matrices, const X* x, int64_t x_row, T* out,
          int64_t out_row, int64_t threads) {
  static thread_local std::vector<float> held;
  held.resize(products.shrunk);
  float* const shrunk = held.data();
  const int64_t inner = matrices.inner;
  by_parts(
      products, threads,
      [](const LoraPart& part) { return pieces(part.count, TAKEN_ROWS) * pieces(part.ranks, TAKEN_RANKS); },
      [&](const LoraPart& part, int64_t item) {
        const int64_t sets = pieces(part.ranks, TAKEN_RANKS), j = item % sets * TAKEN_RANKS;
        const int64_t count = std::min(TAKEN_RANKS, part.ranks - j);
        const T* a[TAKEN_RANKS];
        for (int64_t i = 0; i < count; i++) a[i] = matrices.a + int64_t{products.a_rows[part.rank + j + i]} * inner;
        int64_t r = item / sets * TAKEN_ROWS;
        const int64_t end = std::min(part.count, r + TAKEN_ROWS);
        const X* own[TAKEN_ROWS];
        for (int64_t i = r; i < end; i++) own[i - r] = x + products.rows[part.row + i] * x_row;
        const X* const* from = own;
        float* to = shrunk + part.shrunk + r * part.ranks + j;
        const auto rest = [&](auto function, int64_t rows) {
          function(from, a, count, inner, to, part.ranks);
          from += rows, to += rows * part.ranks, r += rows;
        };
        while (r + 4 <= end) rest(shrink_rows<4, X, T>, 4);
        while (r + 2 <= end) rest(shrink_rows<2, X, T>, 2);
        while (r < end) rest(shrink_rows<1, X, T>, 1);
      });
  by_parts(
      products, threads,
      [](const LoraPart& part) { return pieces(part.count, TAKEN_ROWS) * pieces(part.width, TAKEN_COLUMNS); },
      [&](const LoraPart& part, int64_t item) {
        const int64_t blocks = pieces(part.width, TAKEN_COLUMNS), column = item % blocks * TAKEN_COLUMNS;
        const int64_t columns = std::min(TAKEN_COLUMNS, part.width - column);
        int64_t r = item / blocks * TAKEN_ROWS;
        const int64_t end = std::min(part.count, r + TAKEN_ROWS);
        T* own[TAKEN_ROWS];
        for (int64_t i = r; i < end; i++)
          own[i - r] = out + products.rows[part.row + i] * out_row + part.column + column;
        T* const* to = own;
        const auto rest = [&](auto function, int64_t rows) {
          function(to, matrices.b[part.piece] + column, part.width, products.b_rows + part.rank,
                   shrunk + part.shrunk + r * part.ranks, part.ranks, columns);
          to += rows, r += rows;
        };
        while (r + 4 <= end) rest(add_ranks<4, T>, 4);
        while (r + 2 <= end) rest(add_ranks<2, T>, 2);
        while (r < end) rest(add_ranks<1, T>, 1);
      });
}

// Products below which a second thread is not worth waking.
template <typename T>
int64_t lora_threads(const LoraProducts& products, const LoraMatrices<T>& matrices, int64_t threads) {
  return products.shrunk * matrices.inner * int64_t{sizeof(T)} <= SERIAL_BYTES ? 1 : threads;
}

// A layer's adapters in its linear layers qkv, o, gate_up and down, null where nobody changes one. `products` are the
// batch's, by layout, of which layers share few.
struct LayerLora {
  const LoraMatrices<bf16>* matrices[4];
  int64_t layout[4];
};

}  // namespace

extern "C" {

// Adds every row's adapter to its slices of out; x is [rows, inner].
void graft_lora(const LoraProducts* products, const LoraMatrices<bf16>* matrices, const bf16* x, int64_t x_row,
                bf16* out, int64_t out_row, int64_t rows, int64_t threads) {
  threads = lora_threads(*products, *matrices, threads);
  if (widened()) {
    const int64_t padded = pieces(matrices->inner, 2 * LANES) * 2 * LANES;
    lora(*products, *matrices, take_apart(x, x_row, rows, matrices->inner, padded, threads), padded, out, out_row, threads);
  } else {
    lora(*products, *matrices, x, x_row, out, out_row, threads);
  }
}

void graft_lora_fp32(const LoraProducts* products, const LoraMatrices<float>* matrices, const float* x, int64_t x_row,
                     float* out, int64_t out_row, int64_t rows, int64_t threads) {
  lora(*products, *matrices, x, x_row, out, out_row, lora_threads(*products, *matrices, threads));
}
}
