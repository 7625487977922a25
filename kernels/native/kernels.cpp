// Decode steps in bf16 on CPUs with AVX-512 or AVX2. Plain C functions on pointers: no header of
// PyTorch's, so that it compiles in seconds and fits any version. Sums are float32, rounded once at the end.
// Strides and sizes are in elements. README.md tells what was measured.

#include "rows.h"
#include "linear.h"
#include "quantized.h"
#include "attention.h"
#include "prefill.h"
#include "lora.h"
#include "moe.h"

namespace {

void rotate_row(bf16* x, const bf16* cos, const bf16* sin, int64_t heads, int64_t head_dim, int64_t turned) {
  const int64_t half = turned / 2;
  for (int64_t h = 0; h < heads; h++) {
    bf16* head = x + h * head_dim;
    for (int64_t d = 0; d < half; d += LANES) {
      const Mask mask = first(half - d);
      const Floats a = load(head + d, mask), b = load(head + half + d, mask);
      store(head + d, fma(a, load(cos + d, mask), b * load(sin + d, mask)), mask);
      store(head + half + d,
            fma(b, load(cos + half + d, mask), a * load(sin + half + d, mask)), mask);
    }
  }
}

}  // namespace

extern "C" {

// Tests compare both kinds of products; returns which there were.
bool graft_widen(bool widen) { return widen_products(widen); }

// out [rows, columns] = x W^T (+ bias) (+ residual); w is packed, inner is even.
void graft_linear(const bf16* x, int64_t x_row, const bf16* w, const bf16* bias, const bf16* residual, bf16* out,
                  int64_t rows, int64_t inner, int64_t columns, int64_t threads) {
  if (widened()) {
    const float* wide = widen_rows(x, x_row, rows, inner);
    linear(Linear<float>{wide, w, bias, residual, out, inner, inner, columns}, rows, threads);
  } else {
    linear(Linear<bf16>{x, w, bias, residual, out, x_row, inner, columns}, rows, threads);
  }
}

// The same for weights of 4, 8 or 16 bits.
void graft_matrix(const bf16* x, int64_t x_row, const Matrix* w, const bf16* bias, const bf16* residual, bf16* out,
                  int64_t rows, int64_t inner, int64_t columns, int64_t threads) {
  if (w->bits == 16) {
    graft_linear(x, x_row, static_cast<const bf16*>(w->codes), bias, residual, out, rows, inner, columns, threads);
    return;
  }
  const float* const sums = w->zeros ? group_sums(x, x_row, rows, inner, w->group) : nullptr;
  const int64_t groups = inner / w->group;
  if (widened()) {
    const float* wide = widen_rows(x, x_row, rows, inner);
    quantized(Quantized<float>{wide, sums, w, bias, residual, out, inner, inner, columns, w->group, groups}, rows, threads);
  } else {
    quantized(Quantized<bf16>{x, sums, w, bias, residual, out, x_row, inner, columns, w->group, groups}, rows, threads);
  }
}

// Row r of head h: x / sqrt(mean(x^2) + eps) * weight[h]. Rows of the hidden size are one head each.
void graft_rms_norm(const bf16* x, int64_t x_row, const float* weight, bf16* out, int64_t out_row, int64_t rows,
                    int64_t heads, int64_t width, float eps, int64_t threads) {
  by_rows(rows, heads * width, threads, [&](int64_t row) {
    for (int64_t head = 0; head < heads; head++) {
      const bf16* from = x + row * x_row + head * width;
      bf16* to = out + row * out_row + head * width;
      Floats squares = zeros();
      for (int64_t d = 0; d < width; d += LANES) {
        const Floats value = load(from + d, first(width - d));
        squares = fma(value, value, squares);
      }
      const Floats scale = fill(1 / std::sqrt(sum_of(squares) / width + eps));
      for (int64_t d = 0; d < width; d += LANES) {
        const Mask mask = first(width - d);
        const Floats gain = load(weight + head * width + d, mask);
        store(to + d, load(from + d, mask) * scale * gain, mask);
      }
    }
  });
}

// Pair (i, i + turned / 2) of each head, in place; cos and signed sin are [rows, turned].
void graft_rotate(bf16* x, int64_t x_row, const bf16* cos, const bf16* sin, int64_t rows, int64_t heads,
                  int64_t head_dim, int64_t turned, int64_t threads) {
  by_rows(rows, heads * turned, threads, [&](int64_t row) {
    rotate_row(x + row * x_row, cos + row * turned, sin + row * turned, heads, head_dim, turned);
  });
}

// silu(gate) * up of [rows, 2 * inner].
void graft_silu_gated(const bf16* gate_up, bf16* out, int64_t rows, int64_t inner, int64_t threads) {
  by_rows(rows, 2 * inner, threads, [&](int64_t row) {
    const bf16* const gate = gate_up + row * 2 * inner;
    silu_gated_row(gate, gate + inner, out + row * inner, inner);
  });
}

// What a step's layers have in common. Row r's key and value go to own[r], its angles are [rows, turned]. Single query s
// is row single_rows[s] and sees slots[bounds[s]] to slots[bounds[s + 1]]; chunks are sequences of more. Keys and values
// are [2 (keys, then values), kv_heads, num_slots, head_dim], head_dim a multiple of 32.
struct Step {
  const int64_t *slots, *bounds, *single_rows, *own;
  const Chunk* chunks;
  const bf16 *cos, *sin;
  int64_t rows, singles, chunk_count, heads, kv_heads, head_dim, turned, num_slots, window, threads;
  float scale;
};

// q is [rows, heads, head_dim] of row stride q_row; sinks may be null.
void graft_attend(const Step* step, const bf16* q, int64_t q_row, const bf16* kv, const float* sinks, bf16* out) {
  const Attend call{q,           kv,           step->slots,    step->bounds,    sinks,           out,         q_row,
                    step->heads, step->kv_heads, step->head_dim, step->num_slots, step->window, step->scale};
  const int64_t kv_heads = step->kv_heads, queries = std::max<int64_t>(1, SHARED / (step->heads / kv_heads));
  static thread_local std::vector<int64_t> held;  // of each chunk, where its parts end
  held.assign(step->chunk_count + 1, 0);
  int64_t* const ends = held.data();
  for (int64_t c = 0; c < step->chunk_count; c++)
    ends[c + 1] = ends[c] + (step->chunks[c].queries + queries - 1) / queries * kv_heads;
  const int64_t tiles = ends[step->chunk_count];
  const int64_t bytes = step->bounds[step->singles] * kv_heads * step->head_dim * 4;
  const int64_t threads = !tiles && bytes <= SERIAL_BYTES ? 1 : step->threads;
  team::run(tiles + step->singles * kv_heads, threads, [&](int64_t item) {
    if (item >= tiles) {
      const int64_t single = (item - tiles) / kv_heads;
      attend_group(call, single, step->single_rows[single], (item - tiles) % kv_heads);
      return;
    }
    int64_t c = 0;
    while (item >= ends[c + 1]) c++;
    const Chunk& chunk = step->chunks[c];
    const int64_t parts = (ends[c + 1] - ends[c]) / kv_heads, kv_head = (item - ends[c]) / parts;
    // The last queries see most keys: those that begin first take longest.
    const int64_t begin = (parts - 1 - (item - ends[c]) % parts) * queries, end = std::min(begin + queries, chunk.queries);
    if (widened())
      attend_tile<float>(call, chunk, begin, end, kv_head);
    else
      attend_tile<bf16>(call, chunk, begin, end, kv_head);
  });
}

// qkv is [rows, heads + 2 * kv_heads, head_dim], contiguous: turns queries and keys in place, stores keys and values,
// attends.
void graft_rotate_store_attend(const Step* step, bf16* qkv, bf16* kv, bf16* out) {
  const int64_t dim = step->head_dim, turned = step->turned, stacked = step->heads + 2 * step->kv_heads;
  by_rows(step->rows, stacked * dim, step->threads, [&](int64_t row) {
    bf16* const own = qkv + row * stacked * dim;
    rotate_row(own, step->cos + row * turned, step->sin + row * turned, step->heads + step->kv_heads, dim, turned);
    for (int64_t h = 0; h < 2 * step->kv_heads; h++)
      std::memcpy(kv + (h * step->num_slots + step->own[row]) * dim, own + (step->heads + h) * dim, dim * sizeof(bf16));
  });
  graft_attend(step, qkv, stacked * dim, kv, nullptr, out);
}

// Adds to x [rows, hidden] what the layer makes of the normed rows.
void graft_moe(const Moe* moe, const MoeLora* lora, const LoraProducts* const* products, const int64_t* adapters,
               const bf16* normed, bf16* x, int64_t rows, int64_t threads) {
  const int64_t hidden = moe->experts.hidden, count = moe->experts.count, top_k = moe->experts.top_k, inter = moe->shared_inter;
  static thread_local std::vector<bf16> held;
  static thread_local std::vector<float> weights;
  static thread_local std::vector<int64_t> chosen;
  held.resize(rows * (count + 3 * inter + hidden + 1)), weights.resize(rows * top_k), chosen.resize(rows * top_k);
  bf16 *const logits = held.data(), *const both = logits + rows * count, *const inner = both + rows * 2 * inter,
       *const shared = inner + rows * inter, *const scale = shared + rows * hidden;
  const auto linear_of = [&](int module, const Matrix* w, const bf16* from, int64_t taken, bf16* to, int64_t columns) {
    graft_matrix(from, taken, w, nullptr, nullptr, to, rows, taken, columns, threads);
    if (!lora || !lora->places[module]) return;
    const LoraWeights<bf16> own{taken, lora->places[module]};
    graft_lora(products[lora->layout[module]], &own, from, taken, to, columns, rows, threads);
  };
  linear_of(0, moe->router, normed, hidden, logits, count);
  graft_route(logits, weights.data(), chosen.data(), rows, count, top_k, moe->normalizes, threads);
  if (moe->shared_gate_up) {
    linear_of(1, moe->shared_gate_up, normed, hidden, both, 2 * inter);
    graft_silu_gated(both, inner, rows, inter, threads);
    linear_of(2, moe->shared_down, inner, inter, shared, hidden);
  }
  if (moe->shared_scale) linear_of(3, moe->shared_scale, normed, hidden, scale, 1);
  const Addends addends{moe->shared_gate_up ? shared : nullptr, moe->shared_scale ? scale : nullptr, x};
  const ExpertLora* experts = lora ? &lora->experts : nullptr;
  if (experts && !experts->gate_up.places && !experts->fused.places && !experts->down.places) experts = nullptr;
  graft_experts(&moe->experts, experts, adapters, normed, hidden, chosen.data(), weights.data(), &addends, x, rows, threads);
}

// A decoder layer's weights; norms are float32, head_norm [heads + kv_heads, head_dim], biases and head_norm may be null.
// `moe` stands in place of gate_up and down, or is null. `kind` is which of the call's steps it takes: its window and its angles.
struct Layer {
  const float *input_norm, *head_norm, *mlp_norm;
  const Matrix* qkv;
  const bf16* qkv_bias;
  const Matrix* o;
  const bf16* o_bias;
  const Matrix* gate_up;
  const bf16* gate_up_bias;
  const Matrix* down;
  const bf16* down_bias;
  bf16* kv;
  const Moe* moe;
  int64_t kind;
};

// x [rows, hidden] through all layers, in place: the very calls that Python makes otherwise, one after another. `lora` and
// `adapters`, an index per row, are null where no row has an adapter. `held` has room for a row's normed, qkv, mixed, gate_up and inner, `rows` times.
void graft_layers(const Layer* layers, int64_t count, const Step* const* steps, const LayerLora* lora,
                  const LoraProducts* const* products, const int64_t* adapters, bf16* x, bf16* held, int64_t hidden,
                  int64_t inter, float eps) {
  for (const Layer* layer = layers; layer < layers + count; layer++) {
    const Step* step = steps[layer->kind];
    const int64_t rows = step->rows, threads = step->threads, dim = step->head_dim, turned = step->heads + step->kv_heads;
    const int64_t stacked = (turned + step->kv_heads) * dim, attended = step->heads * dim;
    bf16 *const normed = held, *const qkv = normed + rows * hidden, *const mixed = qkv + rows * stacked,
                *const gate_up = mixed + rows * attended, *const inner = gate_up + rows * 2 * inter;
    const auto add_lora = [&](int module, const bf16* from, int64_t from_row, bf16* to, int64_t to_row) {
      const LayerLora* own = lora ? lora + (layer - layers) : nullptr;
      if (!own || !own->places[module]) return;
      const int64_t taken[] = {hidden, attended, hidden, inter};
      const LoraWeights<bf16> weights{taken[module], own->places[module]};
      graft_lora(products[own->layout[module]], &weights, from, from_row, to, to_row, rows, threads);
    };
    graft_rms_norm(x, hidden, layer->input_norm, normed, hidden, rows, 1, hidden, eps, threads);
    graft_matrix(normed, hidden, layer->qkv, layer->qkv_bias, nullptr, qkv, rows, hidden, stacked, threads);
    add_lora(0, normed, hidden, qkv, stacked);
    if (layer->head_norm) graft_rms_norm(qkv, stacked, layer->head_norm, qkv, stacked, rows, turned, dim, eps, threads);
    graft_rotate_store_attend(step, qkv, layer->kv, mixed);
    // The residual's numbers are read where the sums go, each right before it is written.
    graft_matrix(mixed, attended, layer->o, layer->o_bias, x, x, rows, attended, hidden, threads);
    add_lora(1, mixed, attended, x, hidden);
    graft_rms_norm(x, hidden, layer->mlp_norm, normed, hidden, rows, 1, hidden, eps, threads);
    if (layer->moe) {
      graft_moe(layer->moe, lora ? lora[layer - layers].moe : nullptr, products, adapters, normed, x, rows, threads);
      continue;
    }
    graft_matrix(normed, hidden, layer->gate_up, layer->gate_up_bias, nullptr, gate_up, rows, hidden, 2 * inter, threads);
    add_lora(2, normed, hidden, gate_up, 2 * inter);
    graft_silu_gated(gate_up, inner, rows, inter, threads);
    graft_matrix(inner, inter, layer->down, layer->down_bias, x, x, rows, inter, hidden, threads);
    add_lora(3, inner, inter, x, hidden);
  }
}
}
