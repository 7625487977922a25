"""A recipe: the optimizations to apply to a checkpoint, and the target machine. Standard library only.

A recipe is versioned JSON, read strictly. Its digest is that of its meaning: the order of fields, and fields
left out at their default, do not change it. `compatibility` says which recipes suit which models.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from contracts.recipes.spec_fields import SpecError, SpecFields

VERSION: Final = 1
NEURON_BATCH_SIZE: Final = 8
"""Sequences that Neuron's graphs are compiled for, as in document 004."""
TENSORRT_BATCH_SIZE: Final = 32
"""Sequences that a TensorRT-LLM engine is built for: the deployments' own default."""
COMPILED_SEQUENCE_LENGTH: Final = 8192
"""Most tokens of a sequence by default: memory is allocated for all of them."""
OWN_DRAFT: Final = "sagemaker"
"""As `draft_model`: SageMaker's own draft model."""
_INSTANCE: Final = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")


class Quantization(enum.StrEnum):
    """How linear layers' weights are stored; `optimizer.quantization` and SageMaker write these formats."""

    NONE = "none"
    INT8 = "int8"
    AWQ_G128 = "awq_int4_g128"
    AWQ_G64 = "awq_int4_g64"
    AWQ3_G128 = "awq_int3_g128"
    RTN_G128 = "rtn_int4_g128"
    FP8 = "fp8"


class Head(enum.StrEnum):
    """How the worker holds the language model head; the stored checkpoint keeps the source's format."""

    STORED = "stored"
    INT8 = "int8"


class Drafting(enum.StrEnum):
    """The proposer of draft tokens in speculative decoding."""

    NONE = "none"
    NGRAM = "ngram"
    DRAFT = "draft"
    EAGLE = "eagle"


class Engine(enum.StrEnum):
    """The engine that executes the recipe."""

    LOCAL = "local"
    SAGEMAKER = "sagemaker"


class Hardware(enum.StrEnum):
    """Hardware that the result runs on; GPUs by compute capability."""

    CPU = "cpu"
    SM80 = "sm80"
    SM86 = "sm86"
    SM89 = "sm89"
    SM90 = "sm90"
    SM100 = "sm100"
    NEURON = "neuron"

    @property
    def capability(self) -> int:
        """Compute capability times ten; 0 if it is not an NVIDIA GPU."""
        return int(self.value[2:]) if self.value.startswith("sm") else 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Settings of speculative decoding.

    Attributes:
        tokens: draft tokens proposed per step.
        draft_model: a checkpoint's folder or URI, or `OWN_DRAFT`; empty unless `method` is draft.
    """

    method: Drafting = Drafting.NONE
    tokens: int = 4
    draft_model: str = ""

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(
            fields.choice("method", Drafting, Drafting.NONE),
            fields.whole("tokens", 4, most=16),
            fields.text("draft_model", ""),
        )
        if (read.method is Drafting.DRAFT) != bool(read.draft_model):
            raise fields.error("draft_model", "goes with method 'draft', and with no other")
        if read.tokens != cls().tokens and read.method not in (Drafting.NGRAM, Drafting.DRAFT):
            raise fields.error("tokens", "goes with method 'ngram' or 'draft': leave it out")
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Compilation:
    """Work that is done ahead of time rather than at a copy's start.

    Attributes:
        ahead_of_time: compile code now, rather than at a copy's start.
        packed: write weights in the layout of the CPU kernels, rather than pack them at a host's first start.
        sequence_length: most tokens of a sequence that SageMaker compiles for, prompt and output together;
            0 for the model's context, up to 8192.
        batch_size: sequences that SageMaker compiles for; 0 for NEURON_BATCH_SIZE or TENSORRT_BATCH_SIZE.
    """

    ahead_of_time: bool = False
    packed: bool = False
    sequence_length: int = 0
    batch_size: int = 0

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(
            fields.flag("ahead_of_time"),
            fields.flag("packed"),
            fields.whole("sequence_length", 0, least=0, most=131_072),
            fields.whole("batch_size", 0, least=0, most=256),
        )
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Settings of tensor parallelism.

    Attributes:
        presharded: write each device's shard as a file of its own.
    """

    degree: int = 1
    presharded: bool = False

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(fields.whole("degree", 1, most=64), fields.flag("presharded"))
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that the result runs on.

    Attributes:
        instance_type: SageMaker's, such as ml.g5.12xlarge; empty for our own machines.
    """

    engine: Engine = Engine.LOCAL
    hardware: Hardware = Hardware.CPU
    instance_type: str = ""

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        instance = fields.text("instance_type", "")
        if instance and not _INSTANCE.fullmatch(instance):
            raise fields.error("instance_type", f"must be of the form ml.g5.12xlarge, got {instance!r}")
        read = cls(
            fields.choice("engine", Engine, Engine.LOCAL),
            fields.choice("hardware", Hardware, Hardware.CPU),
            instance,
        )
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Recipe:
    """Optimizations that are applied together.

    Attributes:
        head: if left out, int8 where `takes_int8_head` allows it, else stored.
    """

    quantization: Quantization = Quantization.NONE
    speculation: Speculation = field(default_factory=Speculation)
    compilation: Compilation = field(default_factory=Compilation)
    tensor_parallel: TensorParallel = field(default_factory=TensorParallel)
    target: Target = field(default_factory=Target)
    head: Head = Head.STORED

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Read a recipe. Raises SpecError naming the field that is unknown, missing or malformed."""
        fields.version(VERSION)
        recipe = cls(
            fields.choice("quantization", Quantization, Quantization.NONE),
            Speculation.read(fields.section("speculation")),
            Compilation.read(fields.section("compilation")),
            TensorParallel.read(fields.section("tensor_parallel")),
            Target.read(fields.section("target")),
        )
        usual = Head.INT8 if recipe.takes_int8_head else Head.STORED
        recipe = replace(recipe, head=fields.choice("head", Head, usual))
        fields.end()
        return recipe

    @property
    def takes_int8_head(self) -> bool:
        """Return True if layers and target permit an int8 head."""
        local_cpu = self.target.engine is Engine.LOCAL and self.target.hardware is Hardware.CPU
        return local_cpu and self.quantization not in (Quantization.NONE, Quantization.FP8)

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read a recipe from a JSON object. Raises SpecError as `read` does."""
        return cls.read(SpecFields("recipe", value))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a recipe from JSON text. Raises SpecError as `read` does, and for text that is not JSON."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"recipe is not JSON: {error}") from error
        return cls.from_dict(value)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `from_dict` reads, with every field stated."""
        return {"version": VERSION, **asdict(self)}

    @property
    def digest(self) -> str:
        """Hex SHA-256 of `meaning`."""
        return canonical_digest(self.meaning)

    @property
    def meaning(self) -> dict[str, Any]:
        """The fields that determine the result; recipes with equal meanings produce equal checkpoints.

        Fields that were added later are left out at their default, so that older digests stay valid.
        """
        stated = self.to_dict()
        for name in ("sequence_length", "batch_size"):
            if not stated["compilation"][name]:
                del stated["compilation"][name]
        if self.head is Head.STORED:
            del stated["head"]
        return stated

    @property
    def calibrates(self) -> bool:
        """True if quantization reads calibration texts."""
        return self.quantization in (Quantization.AWQ_G128, Quantization.AWQ_G64, Quantization.AWQ3_G128)

    @property
    def builds_tensorrt_engine(self) -> bool:
        """True if SageMaker compiles for GPUs, for which it uses TensorRT-LLM."""
        by_sagemaker = self.target.engine is Engine.SAGEMAKER and self.compilation.ahead_of_time
        return by_sagemaker and self.target.hardware.capability > 0

    def compiled_shape(self, max_model_len: int) -> tuple[int, int]:
        """Return (tokens of a sequence, sequences) that SageMaker compiles for.

        Args:
            max_model_len: the model's context in tokens; 0 if unknown.
        """
        neuron = self.target.hardware is Hardware.NEURON
        longest = max_model_len or COMPILED_SEQUENCE_LENGTH
        tokens = self.compilation.sequence_length or min(longest, COMPILED_SEQUENCE_LENGTH)
        usual = NEURON_BATCH_SIZE if neuron else TENSORRT_BATCH_SIZE
        return tokens, self.compilation.batch_size or usual

    def worker_flags(self) -> list[str]:
        """Return the speculation flags of `python -m worker_engine` for a checkpoint of this recipe."""
        spoken = self.speculation
        if spoken.method is Drafting.NONE:
            return []
        flags = ["--speculation", spoken.method.value, "--speculation-tokens", str(spoken.tokens)]
        return [*flags, "--draft-model", spoken.draft_model] if spoken.draft_model else flags


def canonical_digest(value: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a JSON object, independent of the order of its fields."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Preset(enum.StrEnum):
    """Recipes by goal. Their measured gains are only in stored runs (`python -m ... presets`)."""

    LOWEST_COST = "lowest_cost"
    LOWEST_LATENCY = "lowest_latency"
    BALANCED = "balanced"


def preset(name: Preset, target: Target) -> Recipe:
    """Return the preset's recipe for a machine.

    Many simultaneous streams decide the cost, and there compute matters more than weight bytes. One stream
    decides latency, where weight bytes and the number of steps matter. On GPUs the cheapest is the smallest
    checkpoint, which leaves room for more streams. On CPUs it is int8, since int4 is widened for each batch.
    """
    on_cpu = target.hardware is Hardware.CPU
    if target.hardware is Hardware.NEURON:
        return Recipe(compilation=Compilation(ahead_of_time=True), target=target)
    small = Quantization.INT8 if on_cpu else Quantization.AWQ_G128
    drafting = Speculation(Drafting.NGRAM)
    compiled = Compilation(ahead_of_time=on_cpu)
    return {
        Preset.LOWEST_COST: Recipe(quantization=small, compilation=compiled, target=target),
        Preset.LOWEST_LATENCY: Recipe(small, drafting, compiled, target=target),
        Preset.BALANCED: Recipe(Quantization.NONE, drafting, compiled, target=target),
    }[name]
