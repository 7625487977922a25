// Mixture of experts: (row, expert) pairs sorted by expert, and one list of (expert, column blocks) for all threads. Only the
// experts that rows chose are read. Products are linear.h's and quantized.h's, adapters' those of lora.h: a pair's sums run in
// one order, and a row adds its pairs in the order of its choices, so its bits do not depend on the other rows.

#pragma once

#include "lora.h"
#include "quantized.h"

namespace {

// A layer's experts: gate_up [2 * inter, hidden], the gate's rows before up's, and down [hidden, inter]. inter is a multiple
// of LANES; matrices of one kind are alike but for their numbers.
struct Experts {
  const Matrix *gate_up, *down;
  int64_t count, top_k, hidden, inter;
};

// The batch's adapters in one product, [adapters, experts, slices]; null where no adapter changes it. A rank is 0 where an
// adapter leaves an expert alone.
struct ExpertSlices {
  const LoraPlace<bf16>* places;
  const int64_t* ranks;
};

// `fused` has one A for gate and up, `gate_up` two.
struct ExpertLora {
  ExpertSlices gate_up, fused, down;
};

// A layer of experts: the router [experts, hidden], and the expert that all rows pass, whose matrices are null where there is
// none. shared_scale [1, hidden] may be null alone.
struct Moe {
  Experts experts;
  const Matrix *router, *shared_gate_up, *shared_down, *shared_scale;
  int64_t shared_inter, normalizes;
};

// The batch's adapters in the router, shared_gate_up, shared_down and shared_scale, as in LayerLora, and in experts.
struct MoeLora {
  const LoraPlace<bf16>* places[4];
  int64_t layout[4];
  ExpertLora experts;
};

// What is added to a row's weighted sum: an expert that all rows pass [rows, hidden], times the sigmoid of a number per row,
// and the residual [rows, hidden]. Each may be null.
struct Addends {
  const bf16 *shared, *shared_scale, *residual;
};

// Bytes of experts' weights and of their adapters that were read, for tests and benchmarks.
struct ExpertBytes {
  std::atomic<int64_t> weights{0}, adapters{0};
};

inline ExpertBytes& expert_bytes() {
  static ExpertBytes held;
  return held;
}

// Pairs by expert, then adapter, then row. Pair i is choice order[i] % top_k of row rows[i], and place[order[i]] is i; those
// of expert active[a] are starts[a] to starts[a + 1].
struct PairList {
  std::vector<int64_t> order, rows, place, active, starts;

  void sort(const Experts& experts, const int64_t* chosen, const int64_t* adapters, int64_t count) {
    const int64_t pairs = count * experts.top_k;
    std::vector<int64_t> next(experts.count + 1);
    for (int64_t p = 0; p < pairs; p++) next[chosen[p] + 1]++;
    active.clear(), starts.assign(1, 0);
    for (int64_t e = 0; e < experts.count; e++) {
      if (next[e + 1]) active.push_back(e), starts.push_back(starts.back() + next[e + 1]);
      next[e + 1] += next[e];
    }
    order.resize(pairs), rows.resize(pairs), place.resize(pairs);
    for (int64_t p = 0; p < pairs; p++) order[next[chosen[p]]++] = p;
    if (adapters)
      for (size_t a = 0; a < active.size(); a++)
        std::stable_sort(order.begin() + starts[a], order.begin() + starts[a + 1], [&](int64_t p, int64_t q) {
          return adapters[p / experts.top_k] < adapters[q / experts.top_k];
        });
    for (int64_t i = 0; i < pairs; i++) rows[i] = order[i] / experts.top_k, place[order[i]] = i;
  }
};

// Adapters of a list's pairs in one product; parts of active expert a are starts[a] to starts[a + 1].
struct ExpertParts {
  std::vector<LoraPart> parts;
  std::vector<LoraPlace<bf16>> places;
  std::vector<int64_t> starts;
  std::vector<float> shrunk;
  int64_t values = 0;

  void clear() { parts.clear(), places.clear(), starts.assign(1, 0), values = 0; }

  // The slices of one adapter's expert: each is `width` columns, from column 0 on.
  void add(const ExpertSlices& from, int64_t index, int64_t slices, int64_t width, int64_t row, int64_t count) {
    if (!from.places) return;
    for (int64_t s = 0; s < slices; s++) {
      const int64_t at = index * slices + s, ranks = from.ranks[at];
      if (!ranks) continue;
      parts.push_back({row, count, ranks, values, int64_t(places.size()), s * width, width});
      places.push_back(from.places[at]);
      values += ranks * count;
    }
  }

  template <typename X>
  void shrink(const X* x, int64_t x_row, const int64_t* rows, int64_t inner, int64_t threads) {
    shrunk.resize(values);
    int64_t numbers = 0;
    for (const LoraPart& part : parts) numbers += part.ranks * (inner + part.width);
    expert_bytes().adapters.fetch_add(numbers * int64_t{sizeof(bf16)}, std::memory_order_relaxed);
    const LoraProducts products{int64_t(parts.size()), values, parts.data(), rows};
    const LoraWeights<bf16> weights{inner, places.data()};
    shrink_parts(products, weights, x, x_row, shrunk.data(), lora_threads(products, weights, threads));
  }

  // Asks for B's columns [from, to) while the base's product, which comes first, computes.
  void request_columns(size_t a, int64_t from, int64_t to) const {
    for (int64_t p = starts[a]; p < starts[a + 1]; p++) {
      const LoraPart& part = parts[p];
      const int64_t begin = std::max(from, part.column), end = std::min(to, part.column + part.width);
      for (int64_t j = 0; j < part.ranks; j++)
        for (int64_t c = begin; c < end; c += 2 * LANES) request(places[part.place].b + j * part.width + c - part.column);
    }
  }

  // Adds to columns [from, to) of out, whose row i is pair i.
  void expand(size_t a, bf16* out, int64_t out_row, int64_t from, int64_t to) const {
    for (int64_t p = starts[a]; p < starts[a + 1]; p++) {
      const LoraPart& part = parts[p];
      const int64_t begin = std::max(from, part.column), end = std::min(to, part.column + part.width);
      if (begin >= end) continue;
      const bf16* const b = places[part.place].b + begin - part.column;
      for (int64_t r = 0; r < part.count; r += TAKEN_ROWS) {
        const int64_t count = std::min(part.count - r, TAKEN_ROWS);
        bf16* own[TAKEN_ROWS];
        for (int64_t i = 0; i < count; i++) own[i] = out + (part.row + r + i) * out_row + begin;
        expand_rows(own, count, part, b, shrunk.data() + part.shrunk + r * part.ranks, end - begin, b, part.width);
      }
    }
  }
};

// What a call computes on, the calling thread's until its next call.
struct ExpertScratch {
  PairList pairs;
  ExpertParts gate_up, down;
  std::vector<bf16> both, inner, y, gathered;
  std::vector<float> wide;
};

// Runs of one adapter among an expert's pairs; base rows, which come first, have none.
inline void list_parts(const Experts& experts, const ExpertLora& lora, const int64_t* adapters, ExpertScratch& held) {
  const PairList& pairs = held.pairs;
  for (size_t a = 0; a < pairs.active.size(); a++) {
    for (int64_t i = pairs.starts[a], end; i < pairs.starts[a + 1]; i = end) {
      const int64_t adapter = adapters[pairs.rows[i]];
      for (end = i + 1; end < pairs.starts[a + 1] && adapters[pairs.rows[end]] == adapter;) end++;
      if (adapter < 0) continue;
      const int64_t index = adapter * experts.count + pairs.active[a];
      held.gate_up.add(lora.gate_up, index, 2, experts.inter, i, end - i);
      held.gate_up.add(lora.fused, index, 1, 2 * experts.inter, i, end - i);
      held.down.add(lora.down, index, 1, experts.hidden, i, end - i);
    }
    held.gate_up.starts.push_back(held.gate_up.parts.size());
    held.down.starts.push_back(held.down.parts.size());
  }
}

// Rows `rows` of x side by side, as bf16 or widened.
inline const bf16* gather(const bf16* x, int64_t x_row, const std::vector<int64_t>& rows, int64_t width, int64_t threads,
                          ExpertScratch& held, bf16) {
  held.gathered.resize(rows.size() * width);
  bf16* const to = held.gathered.data();
  by_rows(rows.size(), width, threads, [&](int64_t i) { std::memcpy(to + i * width, x + rows[i] * x_row, width * sizeof(bf16)); });
  return to;
}

inline const float* gather(const bf16* x, int64_t x_row, const std::vector<int64_t>& rows, int64_t width, int64_t threads,
                           ExpertScratch& held, float) {
  held.wide.resize(rows.size() * width);
  float* const to = held.wide.data();
  by_rows(rows.size(), width, threads, [&](int64_t i) {
    for (int64_t d = 0; d < width; d += LANES) {
      const Mask mask = first(width - d);
      store(to + i * width + d, load(x + rows[i] * x_row + d, mask), mask);
    }
  });
  return to;
}

// x [rows, inner] times blocks [begin, end) of weights of any number of bits. `sums` are of all rows by group, or null.
template <typename X>
void matrix_blocks(const Matrix& w, const X* x, const float* sums, bf16* out, int64_t rows, int64_t inner, int64_t columns,
                   int64_t begin, int64_t end) {
  const int64_t bytes = (end - begin) * LANES * inner * w.bits / 8;
  const int64_t scales = w.bits == 16 ? 0 : (end - begin) * LANES * (inner / w.group) * (w.zeros ? 3 : 2);
  expert_bytes().weights.fetch_add(bytes + scales, std::memory_order_relaxed);
  if (w.bits == 16)
    all_rows(Linear<X>{x, static_cast<const bf16*>(w.codes), nullptr, nullptr, out, inner, inner, columns}, rows, begin, end);
  else
    quantized_by_bits(Quantized<X>{x, sums, &w, nullptr, nullptr, out, inner, inner, columns, w.group, inner / w.group}, rows,
                      begin, end);
}

// Calls function(a, first block, last block) for pieces of `blocks` of all active experts, one list for all threads.
template <typename Function>
void by_blocks(const PairList& pairs, int64_t blocks, int64_t threads, const Function& function) {
  const int64_t each = pieces(blocks, UNIT);
  team::run(int64_t(pairs.active.size()) * each, threads, [&](int64_t item) {
    const int64_t begin = item % each * UNIT;
    function(item / each, begin, std::min(blocks, begin + UNIT));
  });
}

inline void silu_gated_row(const bf16* gate, const bf16* up, bf16* out, int64_t width) {
  for (int64_t d = 0; d < width; d += LANES) {
    const Mask mask = first(width - d);
    const Floats g = load(gate + d, mask), u = load(up + d, mask);
    store(out + d, g / (fill(1) + exp(zeros() - g)) * u, mask);
  }
}

// inner = silu(gate x) * up x of every pair; adapters are added where their columns were multiplied.
template <typename X>
void experts_gate_up(const Experts& experts, const bf16* x, int64_t x_row, ExpertScratch& held, int64_t threads) {
  const int64_t hidden = experts.hidden, inter = experts.inter, blocks = inter / LANES;
  const PairList& pairs = held.pairs;
  const X* const from = gather(x, x_row, pairs.rows, hidden, threads, held, X{});
  const Matrix& any = experts.gate_up[pairs.active[0]];
  const float* const sums = any.zeros ? group_sums(from, hidden, pairs.rows.size(), hidden, any.group) : nullptr;
  const int64_t groups = hidden / any.group;
  by_blocks(pairs, blocks, threads, [&](int64_t a, int64_t begin, int64_t end) {
    const int64_t start = pairs.starts[a], count = pairs.starts[a + 1] - start, column = begin * LANES, width = (end - begin) * LANES;
    const Matrix& w = experts.gate_up[pairs.active[a]];
    bf16* const both = held.both.data() + start * 2 * inter;
    const bool adapted = !held.gate_up.parts.empty();
    for (const int64_t half : {int64_t{0}, inter}) {
      if (adapted) held.gate_up.request_columns(a, half + column, half + column + width);
      matrix_blocks(w, from + start * hidden, sums ? sums + start * groups : nullptr, both, count, hidden, 2 * inter,
                    half / LANES + begin, half / LANES + end);
      if (adapted) held.gate_up.expand(a, held.both.data(), 2 * inter, half + column, half + column + width);
    }
    for (int64_t r = 0; r < count; r++) {
      const bf16* const gate = both + r * 2 * inter + column;
      silu_gated_row(gate, gate + inter, held.inner.data() + (start + r) * inter + column, width);
    }
  });
}

// y = down inner of every pair.
template <typename X>
void experts_down(const Experts& experts, const X* from, ExpertScratch& held, int64_t threads) {
  const int64_t hidden = experts.hidden, inter = experts.inter, blocks = pieces(hidden, LANES);
  const PairList& pairs = held.pairs;
  const Matrix& any = experts.down[pairs.active[0]];
  const float* const sums = any.zeros ? group_sums(from, inter, pairs.rows.size(), inter, any.group) : nullptr;
  const int64_t groups = inter / any.group;
  by_blocks(pairs, blocks, threads, [&](int64_t a, int64_t begin, int64_t end) {
    const int64_t start = pairs.starts[a], count = pairs.starts[a + 1] - start;
    const int64_t column = begin * LANES, last = std::min(hidden, end * LANES);
    const bool adapted = !held.down.parts.empty();
    if (adapted) held.down.request_columns(a, column, last);
    matrix_blocks(experts.down[pairs.active[a]], from + start * inter, sums ? sums + start * groups : nullptr,
                  held.y.data() + start * hidden, count, inter, hidden, begin, end);
    if (adapted) held.down.expand(a, held.y.data(), hidden, column, last);
  });
}

// The pairs of a row in the order of its choices, weighted, and the other terms; rounded once.
inline void combine(const Experts& experts, const float* weights, const Addends& addends, const ExpertScratch& held, bf16* out,
                    int64_t rows, int64_t threads) {
  const int64_t hidden = experts.hidden, top_k = experts.top_k;
  by_rows(rows, hidden * (top_k + 1), threads, [&](int64_t row) {
    float scale = 1;
    if (addends.shared_scale) {
      const Floats gate = load(addends.shared_scale + row, first(1));
      scale = first_of(fill(1) / (fill(1) + exp(zeros() - gate)));
    }
    for (int64_t d = 0; d < hidden; d += LANES) {
      const Mask mask = first(hidden - d);
      Floats sum = zeros();
      for (int64_t k = 0; k < top_k; k++) {
        const bf16* const y = held.y.data() + held.pairs.place[row * top_k + k] * hidden + d;
        sum = fma(fill(weights[row * top_k + k]), load(y, mask), sum);
      }
      if (addends.shared) sum = fma(fill(scale), load(addends.shared + row * hidden + d, mask), sum);
      if (addends.residual) sum = sum + load(addends.residual + row * hidden + d, mask);
      store(out + row * hidden + d, sum, mask);
    }
  });
}

template <typename X>
void run_experts(const Experts& experts, const bf16* x, int64_t x_row, int64_t rows, ExpertScratch& held, int64_t threads) {
  const int64_t hidden = experts.hidden, inter = experts.inter, pairs = held.pairs.rows.size();
  const auto apart = [&](const bf16* from, int64_t from_row, int64_t count, int64_t width, ExpertParts& parts, const int64_t* of) {
    if (parts.parts.empty()) return;
    if constexpr (sizeof(X) == sizeof(float)) {
      const int64_t padded = pieces(width, 2 * LANES) * 2 * LANES;
      parts.shrink(take_apart(from, from_row, count, width, padded, threads), padded, of, width, threads);
    } else {
      parts.shrink(from, from_row, of, width, threads);
    }
  };
  held.both.resize(pairs * 2 * inter), held.inner.resize(pairs * inter), held.y.resize(pairs * hidden);
  apart(x, x_row, rows, hidden, held.gate_up, held.pairs.rows.data());
  experts_gate_up<X>(experts, x, x_row, held, threads);
  std::vector<int64_t> own(pairs);
  std::iota(own.begin(), own.end(), 0);
  apart(held.inner.data(), inter, pairs, inter, held.down, own.data());
  if constexpr (sizeof(X) == sizeof(float))
    experts_down(experts, gather(held.inner.data(), inter, own, inter, threads, held, X{}), held, threads);
  else
    experts_down(experts, static_cast<const bf16*>(held.inner.data()), held, threads);
}

}  // namespace

extern "C" {

// The experts of each row and their weights, [rows, top_k], by a softmax over its logits [rows, experts]; divided by their
// sum where `normalizes`. Of equal logits the first counts.
void graft_route(const bf16* logits, float* weights, int64_t* chosen, int64_t rows, int64_t experts, int64_t top_k,
                 bool normalizes, int64_t threads) {
  by_rows(rows, experts, threads, [&](int64_t row) {
    static thread_local std::vector<float> held;
    held.resize(experts + LANES);
    float* const p = held.data();
    float most = -INFINITY, sum = 0, part = 0;
    for (int64_t d = 0; d < experts; d += LANES) store(p + d, load(logits + row * experts + d, first(experts - d)));
    for (int64_t e = 0; e < experts; e++) most = std::max(most, p[e]);
    for (int64_t d = 0; d < experts; d += LANES) store(p + d, exp(load(p + d) - fill(most)));
    for (int64_t e = 0; e < experts; e++) sum += p[e];
    for (int64_t k = 0; k < top_k; k++) {
      int64_t best = -1;  // of numbers that are none, too, one is taken
      for (int64_t e = 0; e < experts; e++)
        if (std::find(chosen + row * top_k, chosen + row * top_k + k, e) == chosen + row * top_k + k && (best < 0 || p[e] > p[best]))
          best = e;
      chosen[row * top_k + k] = best, weights[row * top_k + k] = p[best] / sum, part += p[best] / sum;
    }
    if (normalizes)
      for (int64_t k = 0; k < top_k; k++) weights[row * top_k + k] /= part;
  });
}

// out [rows, hidden] = the weighted sum of each row's experts, with its adapter's ranks, plus addends. `lora` and
// `adapters` (an index per row, -1 for none) are null where no row has an adapter on experts. out may be the residual.
void graft_experts(const Experts* experts, const ExpertLora* lora, const int64_t* adapters, const bf16* x, int64_t x_row,
                   const int64_t* chosen, const float* weights, const Addends* addends, bf16* out, int64_t rows, int64_t threads) {
  static thread_local ExpertScratch scratch;
  ExpertScratch& held = scratch;  // by reference: other threads have scratches of their own
  held.pairs.sort(*experts, chosen, lora ? adapters : nullptr, rows);
  held.gate_up.clear(), held.down.clear();
  if (lora) list_parts(*experts, *lora, adapters, held);
  if (!rows) return;
  if (widened())
    run_experts<float>(*experts, x, x_row, rows, held, threads);
  else
    run_experts<bf16>(*experts, x, x_row, rows, held, threads);
  combine(*experts, weights, *addends, held, out, rows, threads);
}

// Bytes of experts' weights and of their adapters that were read since the last call.
void graft_expert_bytes(int64_t* weights, int64_t* adapters) {
  *weights = expert_bytes().weights.exchange(0), *adapters = expert_bytes().adapters.exchange(0);
}
}
