"""The decoder architecture shared by all families, as in Llama; each family's file holds the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch.nn.functional import embedding

from kernels.activation import Kind, gated
from kernels.lora import Segments
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.checkpoint.model_config import PATHS, ModelConfig
from worker_engine.layers.attention import Attention, AttentionPlan, KVCache
from worker_engine.layers.linear import LayerLora, LoraLinear, PackedLinear
from worker_engine.layers.norm import HeadNorm, OwnNorms, RMSNorm
from worker_engine.layers.rotary import Angles, Rotary
from worker_engine.layers.stack import NativeStack, StackPart
from worker_engine.layers.tops import Tops
from worker_engine.models.head import load_int8_head
from worker_engine.models.linear_loader import load_weight


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows: decode rows first, then prefill chunks.

    Attributes:
        token_ids: int64 [rows].
        positions: int64 [rows].
        output_rows: int64, rows whose hidden states are returned; None for all, in order.
        lora: by decoder layer, empty when no row has an adapter.
        segments: rows by adapter.
        tops: adapters' changes outside of linear modules; None if there are none.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionPlan
    output_rows: torch.Tensor | None
    lora: Sequence[LayerLora]
    segments: Segments
    tops: Tops | None = None

    @property
    def norms(self) -> OwnNorms | None:
        return None if self.tops is None else self.tops.norms


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Builds a decoder layer's modules from the checkpoint's tensors under one prefix.

    Attributes:
        root: the part of the prefix that adapters' paths lack.
        kind: class of the linear layers.
        paths: the checkpoint's paths of linear modules within the layer.
    """

    config: ModelConfig
    checkpoint: Checkpoint
    prefix: str
    root: str = ""
    kind: type[LoraLinear] = LoraLinear
    paths: Mapping[str, str] = field(default_factory=lambda: PATHS)

    def linear(self, name: str, *, holder: str = "mlp") -> LoraLinear:
        """Load the packed layer `name` of the configuration's `packed_modules`.

        Args:
            holder: the checkpoint's name of the layer's feed-forward.
        """
        shapes, get = self.config.module_shapes, self.checkpoint.get
        parts = [
            (f"{self.prefix}{self.paths[module].replace('mlp', holder)}", shapes[module])
            for module in self.config.packed_modules[name]
        ]
        bias = None
        if name in self.config.biased:
            bias = torch.cat([get(f"{path}.bias", shape[0]) for path, shape in parts])
        weights = [(f"{path}.weight", shape) for path, shape in parts]
        return self.kind(load_weight(self.checkpoint, f"{self.prefix}{name}", weights), bias)

    def norm(self, name: str, *, offset: float = 0.0) -> RMSNorm:
        weight = self.checkpoint.get(f"{self.prefix}{name}.weight", self.config.hidden_size)
        path = f"{self.prefix}{name}".removeprefix(self.root)
        return RMSNorm(weight, self.config.rms_norm_eps, offset=offset, path=path)

    def head_norm(self, *, offset: float = 0.0) -> HeadNorm:
        query, key = (
            self.checkpoint.get(f"{self.prefix}self_attn.{name}.weight", self.config.head_dim)
            for name in ("q_norm", "k_norm")
        )
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        lines = torch.cat((query.expand(heads, -1), key.expand(kv_heads, -1)))
        return HeadNorm(lines, self.config.rms_norm_eps, offset=offset)


class DecoderLayer:
    """Attention and feed-forward, each around a residual."""

    activation: ClassVar[Kind] = "silu"
    stacks: ClassVar[bool] = True
    """True if `kernels.native.stack` computes the same as `__call__`, for adapters with only LoRA pairs."""

    def __init__(self, index: int, weights: LayerWeights) -> None:
        config = weights.config
        self._index = index
        self._heads, self._kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self._qkv, self._o = weights.linear("qkv"), weights.linear("o")
        self._attention = Attention(config.attention_scale, config.attention[index].window)
        self._load_feed_forward(weights)
        self._load_norms(weights)

    @property
    def linears(self) -> dict[str, LoraLinear]:
        """The layer's linear modules, by name in `PACKED_MODULES`."""
        return {"qkv": self._qkv, "o": self._o, "gate_up": self._gate_up, "down": self._down}

    def stack_part(self, rope: int) -> StackPart:
        attention = self._attention
        return StackPart(
            self.linears,
            self._input_norm,
            self._mlp_norm,
            self._head_norm,
            attention.window,
            attention.scale,
            rope,
        )

    def _load_feed_forward(self, weights: LayerWeights) -> None:
        self._gate_up, self._down = weights.linear("gate_up"), weights.linear("down")

    def _load_norms(self, weights: LayerWeights) -> None:
        self._head_norm: HeadNorm | None = None
        self._input_norm = weights.norm("input_layernorm")
        self._mlp_norm = weights.norm("post_attention_layernorm")

    def __call__(self, x: torch.Tensor, batch: Batch, cache: KVCache, angles: Angles) -> torch.Tensor:
        """Map [rows, hidden] to [rows, hidden]; writes this layer's keys and values."""
        lora: LayerLora = batch.lora[self._index] if batch.lora else {}
        mixed = self._attend(self._input_norm(x, batch.norms), lora, batch, cache, angles)
        x = self._o.forward(mixed, lora.get("o"), batch.segments, residual=x)
        return self._feed_forward(self._mlp_norm(x, batch.norms), x, lora, batch)

    def _feed_forward(
        self, x: torch.Tensor, residual: torch.Tensor, lora: LayerLora, batch: Batch
    ) -> torch.Tensor:
        """Map the normed x [rows, hidden] to [rows, hidden], the residual added."""
        inner = self._gate(x, lora, batch)
        return self._down.forward(inner, lora.get("down"), batch.segments, residual=residual)

    def _attend(
        self, x: torch.Tensor, lora: LayerLora, batch: Batch, cache: KVCache, angles: Angles
    ) -> torch.Tensor:
        """Map [rows, hidden] to [rows, heads * head_dim]."""
        num_rotated = self._heads + self._kv_heads
        qkv = self._qkv.forward(x, lora.get("qkv"), batch.segments)
        qkv = qkv.view(-1, num_rotated + self._kv_heads, self._head_dim)
        if self._head_norm is not None:
            self._head_norm(qkv[:, :num_rotated])
        return self._attention(cache, self._index, qkv, angles, batch.attention)

    def _gate(self, x: torch.Tensor, lora: LayerLora, batch: Batch) -> torch.Tensor:
        """Map [rows, hidden] to [rows, intermediate]."""
        return gated(self._gate_up.forward(x, lora.get("gate_up"), batch.segments), self.activation)


class Decoder:
    """A checkpoint on one device. Subclasses are the families.

    Attributes:
        prefix: prefix of the decoder's tensor names.
        unused: prefixes and suffixes of tensor names that the model does not read.
        norm_offset: as in `RMSNorm`, of the last norm.
        paths: the checkpoint's paths of linear modules within a decoder layer.
    """

    ARCHITECTURE: ClassVar[str]
    MODEL_TYPE: ClassVar[str]
    prefix: ClassVar[str] = ""
    unused: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)
    layer: ClassVar[type[DecoderLayer]] = DecoderLayer
    norm_offset: ClassVar[float] = 0.0
    paths: ClassVar[Mapping[str, str]] = PATHS

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        """Return the model's shape from config.json.

        Raises:
            CheckpointError: naming a field that is missing, malformed or not supported.
        """
        raise NotImplementedError

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Load all weights. Raises CheckpointError naming a tensor that is missing, of the wrong shape or
        unused.
        """
        ropes = list(dict.fromkeys(layer.rope for layer in config.attention))
        self._rotaries = [
            Rotary(rope, config.head_dim, max_model_len, dtype=dtype, device=device) for rope in ropes
        ]
        model, head = f"{self.prefix}model.", f"{self.prefix}lm_head.weight"
        self._layers = [
            (self.layer(i, self._weights(config, checkpoint, f"layers.{i}.")), ropes.index(layer.rope))
            for i, layer in enumerate(config.attention)
        ]
        self._stack: NativeStack | None = None
        if self.layer.stacks and device.type == "cpu":
            parts = [layer.stack_part(rope) for layer, rope in self._layers]
            self._stack = NativeStack(parts, heads=config.num_heads)
        self._norm = self._weights(config, checkpoint, "").norm("norm", offset=self.norm_offset)
        size = config.embedding_shape
        self._embedding = checkpoint.get(f"{model}embed_tokens.weight", *size)
        tied = config.tie_word_embeddings or head not in checkpoint
        source = f"{model}embed_tokens.weight" if tied else head
        if checkpoint.int8_head and checkpoint.scheme(source) is None:
            weight = load_int8_head(checkpoint, head, source, size, self._embedding if tied else None)
        else:
            weight = load_weight(checkpoint, head, [(source, size)])
        self._head = PackedLinear(weight)
        self._softcap = config.logit_softcap
        checkpoint.refuse_unused((*self.unused, head))

    @property
    def linears(self) -> list[dict[str, LoraLinear]]:
        """The linear layers of each decoder layer."""
        return [layer.linears for layer, _ in self._layers]

    @classmethod
    def _weights(cls, config: ModelConfig, checkpoint: Checkpoint, path: str) -> LayerWeights:
        prefix = f"{cls.prefix}model.{path}"
        return LayerWeights(config, checkpoint, prefix, cls.prefix, paths=cls.paths)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Run one step; return hidden states [len(output_rows), hidden] after the last norm."""
        x = self.embed(batch.token_ids, batch.tops)
        angles = [rotary.angles(batch.positions) for rotary in self._rotaries]
        stack, lora = self._stack, () if batch.segments.empty else batch.lora
        if stack is not None and batch.norms is None and stack.takes(batch.attention, cache, lora):
            stack.run_(x, batch.attention, cache, angles, lora, batch.segments)
        else:
            for layer, rope in self._layers:
                x = layer(x, batch, cache, angles[rope])
        if batch.output_rows is not None:
            x = x[batch.output_rows]
        return self._norm(x, batch.norms)

    def predict(self, x: torch.Tensor, tops: Tops | None) -> torch.Tensor:
        """Map hidden states (`forward`'s result or some of its rows) to float32 logits [rows, vocab].

        Args:
            tops: its `logit_segments` must be of these rows.
        """
        logits = self._head(x)
        if tops is not None:
            tops.predict(logits, x)
        logits = logits.float()
        return logits.div_(self._softcap).tanh_().mul_(self._softcap) if self._softcap else logits

    def embed(self, token_ids: torch.Tensor, tops: Tops | None) -> torch.Tensor:
        """Map token ids [rows] to [rows, hidden]."""
        x = embedding(token_ids, self._embedding)
        if tops is not None:
            tops.embed(x, token_ids)
        return x
