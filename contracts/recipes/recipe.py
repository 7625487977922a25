"""What is to be done to a checkpoint, as JSON: which techniques, for which machine. Standard library only.

A recipe is versioned and strict, and its digest is that of its meaning: fields in another order, or left out
at their default, are the same recipe. Which recipes go together with which models is `compatibility`.
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
OWN_DRAFT: Final = "sagemaker"
"""As `draft_model`: the draft model that SageMaker brings along."""
_INSTANCE: Final = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")


class Quantization(enum.StrEnum):
    """How linear layers' weights are stored; `optimizer.quantization` and SageMaker write
    them."""

    NONE = "none"
    INT8 = "int8"
    AWQ_G128 = "awq_int4_g128"
    AWQ_G64 = "awq_int4_g64"
    RTN_G128 = "rtn_int4_g128"
    FP8 = "fp8"


class Head(enum.StrEnum):
    """How the worker holds the language model head, which the output stores as the source has it."""

    STORED = "stored"
    INT8 = "int8"


class Drafting(enum.StrEnum):
    """Who proposes tokens in speculative decoding."""

    NONE = "none"
    NGRAM = "ngram"
    DRAFT = "draft"
    EAGLE = "eagle"


class Engine(enum.StrEnum):
    """Who carries the recipe out."""

    LOCAL = "local"
    SAGEMAKER = "sagemaker"


class Hardware(enum.StrEnum):
    """What the result is to run on: GPUs by compute capability."""

    CPU = "cpu"
    SM80 = "sm80"
    SM86 = "sm86"
    SM89 = "sm89"
    SM90 = "sm90"
    SM100 = "sm100"
    NEURON = "neuron"

    @property
    def capability(self) -> int:
        """Compute capability times ten; 0 where it is no GPU of NVIDIA's."""
        return int(self.value[2:]) if self.value.startswith("sm") else 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Attributes:
    tokens: proposed at a time.
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
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Compilation:
    """Attributes:
    ahead_of_time: code is compiled now, instead of at a copy's start.
    packed: weights are written as the CPU's loops read them, instead of at a host's first start.
    """

    ahead_of_time: bool = False
    packed: bool = False

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(fields.flag("ahead_of_time"), fields.flag("packed"))
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Attributes:
    presharded: each device's part is written as a file of its own.
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
    """Attributes:
    instance_type: SageMaker's, such as ml.g5.12xlarge; empty on our own machines.
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
    """Techniques that are applied together.

    Attributes:
        head: where a recipe is read that leaves it out, int8 where 8 bits of it are multiplied as they are.
    """

    quantization: Quantization = Quantization.NONE
    speculation: Speculation = field(default_factory=Speculation)
    compilation: Compilation = field(default_factory=Compilation)
    tensor_parallel: TensorParallel = field(default_factory=TensorParallel)
    target: Target = field(default_factory=Target)
    head: Head = Head.STORED

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Raises SpecError naming the field that is unknown, missing or malformed."""
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
        """Whether layers and target are such that 8 bits of the head are multiplied as they are."""
        local_cpu = self.target.engine is Engine.LOCAL and self.target.hardware is Hardware.CPU
        return local_cpu and self.quantization not in (Quantization.NONE, Quantization.FP8)

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Raises SpecError as `read` does."""
        return cls.read(SpecFields("recipe", value))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises SpecError as `read` does, and for what is no JSON."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"recipe is not JSON: {error}") from error
        return cls.from_dict(value)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes, every field stated."""
        return {"version": VERSION, **asdict(self)}

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the meaning."""
        return canonical_digest(self.meaning)

    @property
    def meaning(self) -> dict[str, Any]:
        """What two recipes that come out alike have alike. A stored head is not in it, as before there was a
        choice: digests that were kept go on holding."""
        stated = self.to_dict()
        if self.head is Head.STORED:
            del stated["head"]
        return stated

    def worker_flags(self) -> list[str]:
        """What `python -m worker_engine` is told beside the checkpoint that came of this recipe."""
        spoken = self.speculation
        if spoken.method is Drafting.NONE:
            return []
        flags = ["--speculation", spoken.method.value, "--speculation-tokens", str(spoken.tokens)]
        return [*flags, "--draft-model", spoken.draft_model] if spoken.draft_model else flags


def canonical_digest(value: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a JSON object, whatever the order of its fields."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Preset(enum.StrEnum):
    """A recipe by what it is for. What it is worth stands in stored runs alone (`python -m ... presets`)."""

    LOWEST_COST = "lowest_cost"
    LOWEST_LATENCY = "lowest_latency"
    BALANCED = "balanced"


def preset(name: Preset, target: Target) -> Recipe:
    """The preset for a machine.

    Cost is decided by many streams at once, where products compute and weights' bytes count less; latency by
    one, where weights' bytes and the number of steps are all. So on GPUs the cheapest is the smallest
    checkpoint, which leaves room for more streams; on CPUs 8 bits, since 4 have to be widened for each batch.
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
