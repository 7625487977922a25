"""The model's shape as read from a checkpoint's config.json: fields shared by all families, and per-layer
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ROUTED_MODULES, ROUTED_PATHS, ExpertsConfig
from worker_engine.checkpoint.latent_config import LATENT_PATHS, LatentConfig
from worker_engine.checkpoint.quantization_config import Quantization
from worker_engine.checkpoint.rope_config import Rope

MODULE_PATHS: Final[Mapping[str, str]] = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
"""Linear modules of a decoder layer that an adapter may change, and their paths within the layer."""
LORA_MODULES: Final = tuple(MODULE_PATHS)
PATHS: Final[Mapping[str, str]] = {**MODULE_PATHS, **LATENT_PATHS, **ROUTED_PATHS}
"""Paths within a decoder layer of all linear modules but those of single experts."""
PACKED_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Linear layers as computed, and the modules whose rows each stacks. Latent attention has no `qkv`."""

LARGEST_HEAD: Final = 256
"""Largest head size that `kernels.attention` supports."""
_MOST_LAYERS: Final = 1024


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries at position p are multiplied with `1 + rate * ln(1 + floor((p + 1) / interval))` (Llama 4)."""

    interval: int
    rate: float


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention parameters of one layer.

    Attributes:
        window: tokens that a query attends to, itself included; 0 for all.
        rotates: False if queries and keys are not rotated.
        chunk: a query attends to the tokens of its own chunk of this many positions; 0 for all.
        normalizes: True if rotated queries and keys are divided by their root mean square.
        growth: of queries with their position; None if they do not grow.
    """

    window: int
    rope: Rope
    rotates: bool = True
    chunk: int = 0
    normalizes: bool = False
    growth: QueryGrowth | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, as its family reads it (`worker_engine.models.load_config`).

    Attributes:
        architecture: the class name in transformers, which selects the family.
        attention_scale: factor of attention scores.
        attention: by layer.
        biased: packed layers (`PACKED_MODULES`) that have a bias.
        logit_softcap: logits become c tanh(logits / c); 0 for none.
        dtype: of the checkpoint's weights.
        quantization: of the quantized weights; None if there are none.
        experts: of the layers with a mixture of experts; None if all layers are dense.
        latent: of latent attention, whose cache has one head of keys alone; None for any other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    attention_scale: float
    attention: tuple[LayerAttention, ...]
    biased: frozenset[str]
    logit_softcap: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    quantization: Quantization | None = None
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None

    @classmethod
    def read(
        cls,
        fields: Fields,
        architecture: str,
        attention: Sequence[LayerAttention],
        *,
        biased: Sequence[str] = (),
        query_scale: float = 0.0,
        logit_softcap: float = 0.0,
        tie_word_embeddings: bool = False,
        defaults: Mapping[str, int] | None = None,
        experts: ExpertsConfig | None = None,
    ) -> Self:
        """Build the configuration from the shared fields and the family's own.

        Args:
            query_scale: attention scores are scaled by its inverse square root; 0 for the head size.
            tie_word_embeddings: default where the field is absent.
            defaults: sizes that the family's checkpoints may omit.

        Raises:
            CheckpointError: naming the field that is missing, malformed or not supported.
        """
        defaults = defaults or {}
        heads = fields.whole("num_attention_heads", defaults.get("num_attention_heads"))
        kv_heads = fields.whole("num_key_value_heads", defaults.get("num_key_value_heads", heads))
        hidden = fields.whole("hidden_size")
        head_dim = fields.whole("head_dim", defaults.get("head_dim", hidden // heads))
        if heads % kv_heads:
            raise fields.error(
                "num_attention_heads", f"{heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        if head_dim % 2 or head_dim > LARGEST_HEAD:
            raise fields.error("head_dim", f"{head_dim} is not served, only even ones up to {LARGEST_HEAD}")
        positions = fields.whole("max_position_embeddings", defaults.get("max_position_embeddings"))
        return cls(
            architecture=architecture,
            vocab_size=fields.whole("vocab_size", defaults.get("vocab_size")),
            hidden_size=hidden,
            intermediate_size=fields.whole("intermediate_size"),
            num_layers=len(attention),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            attention_scale=(query_scale or head_dim) ** -0.5,
            attention=tuple(attention),
            biased=frozenset(biased),
            logit_softcap=logit_softcap,
            max_position_embeddings=max(positions, *(layer.rope.stretched_positions for layer in attention)),
            tie_word_embeddings=fields.flag("tie_word_embeddings", tie_word_embeddings),
            dtype=fields.text("dtype", fields.text("torch_dtype", "float32")),
            eos_token_ids=fields.token_ids("eos_token_id"),
            experts=experts,
        )

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of every linear module of a dense decoder layer; equal for all layers."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            **self._attention_shapes(),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }

    def _attention_shapes(self) -> dict[str, tuple[int, int]]:
        hidden = self.hidden_size
        if self.latent is not None:
            return self.latent.module_shapes(hidden, self.num_heads)
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (query, hidden),
            "k_proj": (key, hidden),
            "v_proj": (key, hidden),
            "o_proj": (hidden, query),
        }

    @property
    def packed_modules(self) -> Mapping[str, tuple[str, ...]]:
        """`PACKED_MODULES`, and those of layers of experts; a single expert's are `EXPERT_MODULES`."""
        shapes = self.module_shapes
        routed = {name: parts for name, parts in ROUTED_MODULES.items() if parts[0] in shapes}
        latent = {} if self.latent is None else self.latent.packed_modules
        plain = {name: parts for name, parts in PACKED_MODULES.items() if parts[-1] in shapes}
        return {**latent, **plain, **routed}

    @property
    def module_shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of every linear module of `packed_modules`."""
        routed = {} if self.experts is None else self.experts.routed_shapes(self.hidden_size)
        return self.linear_shapes | routed

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Shape of a layer's cache for one token: 2 for keys and values (1 for both in one), heads, size."""
        if self.latent is not None:
            return 1, 1, self.latent.cached_dim
        return 2, self.num_kv_heads, self.head_dim

    @property
    def embedding_shape(self) -> tuple[int, int]:
        """Shape (vocabulary, hidden) of the weights of embed_tokens and lm_head."""
        return self.vocab_size, self.hidden_size


def read_num_layers(fields: Fields) -> int:
    layers = fields.whole("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise fields.error("num_hidden_layers", f"{layers} is not served, only up to {_MOST_LAYERS}")
    return layers


def read_layer_types(fields: Fields, window: int, default: Sequence[bool]) -> list[int]:
    """Return each layer's window from `layer_types`, or from `default` if that field is absent.

    Args:
        window: of sliding layers; 0 where the config has none.
        default: by layer, True for sliding attention.
    """
    kinds = fields.texts("layer_types") or tuple(
        "sliding_attention" if slides else "full_attention" for slides in default
    )
    if len(kinds) != len(default):
        raise fields.error("layer_types", f"names {len(kinds)} layers; num_hidden_layers is {len(default)}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.error(
                "layer_types", f"{kind!r} is not served, only 'full_attention' and 'sliding_attention'"
            )
    if not window and "sliding_attention" in kinds:
        raise fields.error("layer_types", "has 'sliding_attention', but no sliding_window is in use")
    return [window if kind == "sliding_attention" else 0 for kind in kinds]
