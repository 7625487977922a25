"""Which techniques can be combined, for which hardware and model; a check returns every conflict at once.

A table of rules, ours and SageMaker's; standard library only. SageMaker's stand in its documentation of
inference optimization, in the API model of CreateOptimizationJob and in the checks of its Python SDK
(`sagemaker/serve/validations/optimization.py` and `ModelBuilder.optimize`, August 2026).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from contracts.capabilities.worker import ARCHITECTURES, SPARSE
from contracts.recipes.model_facts import ModelFacts, Situation
from contracts.recipes.recipe import OWN_DRAFT, Drafting, Engine, Hardware, Head, Quantization, Recipe

EXPERTS_REASON: Final = (
    "has experts, whose checkpoints are not quantized or merged here: leave quantization at none, and serve "
    "adapters unmerged"
)
_FP8_CAPABILITY: Final = 89
_FAMILIES: Final[Mapping[str, Hardware]] = {
    "p4d": Hardware.SM80,
    "p4de": Hardware.SM80,
    "g5": Hardware.SM86,
    "g6": Hardware.SM89,
    "g6e": Hardware.SM89,
    "p5": Hardware.SM90,
    "p5e": Hardware.SM90,
    "p5en": Hardware.SM90,
    "p6-b200": Hardware.SM100,
    "inf2": Hardware.NEURON,
    "trn1": Hardware.NEURON,
    "trn1n": Hardware.NEURON,
}
"""Hardware of SageMaker's instance families; other families are not checked."""
_AFTER_LLAMA_3_0: Final = re.compile(r"llama-?3[.-][1-9](?!\d*b\b)", re.IGNORECASE)
"""Names of Llama 3.1 and later, but not of `llama-3-8b`."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a stack is refused.

    Attributes:
        code: for programs, stable.
        text: for people: the conflict, and the alternatives.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything that a rule may check.

    Attributes:
        draft: the draft model's facts, if it has a folder.
        merges: an adapter is merged into the checkpoint that is written.
    """

    recipe: Recipe
    model: ModelFacts = field(default_factory=ModelFacts)
    situation: Situation = field(default_factory=Situation)
    draft: ModelFacts | None = None
    merges: bool = False

    @property
    def local(self) -> bool:
        return self.recipe.target.engine is Engine.LOCAL

    @property
    def quantizes(self) -> bool:
        return self.recipe.quantization is not Quantization.NONE

    @property
    def speculates(self) -> bool:
        return self.recipe.speculation.method is not Drafting.NONE

    @property
    def own_draft(self) -> bool:
        """True if the draft model is SageMaker's own."""
        return self.recipe.speculation.draft_model == OWN_DRAFT

    @property
    def compiles(self) -> bool:
        return self.recipe.compilation.ahead_of_time or self.recipe.compilation.packed


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: refuses a stack if `applies`, with `text`, a format of {recipe}, {model} and {draft}."""

    code: str
    applies: Callable[[Stack], bool]
    text: str


def _fp8_without_units(stack: Stack) -> bool:
    hardware = stack.recipe.target.hardware
    return stack.recipe.quantization is Quantization.FP8 and (
        hardware is Hardware.CPU or 0 < hardware.capability < _FP8_CAPABILITY
    )


def _instance_hardware(stack: Stack) -> Hardware | None:
    """Return the hardware of the recipe's instance type; None if the family is not in the table."""
    parts = stack.recipe.target.instance_type.split(".")
    return _FAMILIES.get(parts[1]) if len(parts) == 3 else None


def _other_hardware(stack: Stack) -> bool:
    known = _instance_hardware(stack)
    accelerator = stack.recipe.target.hardware is not Hardware.CPU
    return not stack.local and accelerator and known not in (None, stack.recipe.target.hardware)


def _is_neuron(stack: Stack) -> bool:
    return not stack.local and stack.recipe.target.hardware is Hardware.NEURON


def _other_vocabulary(stack: Stack) -> bool:
    ours, theirs = stack.model.vocabulary, stack.draft.vocabulary if stack.draft else None
    return stack.draft is not None and (ours is None or ours != theirs)


OURS: Final = (
    Rule(
        "architecture_not_served",
        lambda stack: (
            stack.local
            and stack.model.architecture is not None
            and stack.model.architecture not in ARCHITECTURES
        ),
        "{model.architecture} is not served by the worker, only " + ", ".join(ARCHITECTURES),
    ),
    Rule(
        "experts_keep_their_weights",
        lambda stack: (
            stack.local and stack.model.architecture in SPARSE and (stack.quantizes or stack.merges)
        ),
        "{model.architecture} " + EXPERTS_REASON,
    ),
    Rule(
        "quantized_already",
        lambda stack: stack.quantizes and bool(stack.model.quantized),
        "the checkpoint's weights are quantized already ({model.quantized}): start from the plain one",
    ),
    Rule(
        "fp8_hardware",
        _fp8_without_units,
        "FP8 products need a GPU of compute capability 8.9 or newer, not {recipe.target.hardware}: "
        "set quantization to int8 or an AWQ scheme",
    ),
    Rule(
        "int8_head",
        lambda stack: stack.recipe.head is Head.INT8 and not stack.recipe.takes_int8_head,
        "a head of 8 bits is for the worker's CPU loops, beside layers of 4 or 8 bits: leave head out",
    ),
    Rule(
        "merged_adapter_on_quantized_base",
        lambda stack: stack.quantizes and stack.situation.merge_adapter,
        "an adapter cannot be merged into quantized weights without rounding it away: serve without "
        "--merge-adapter, or leave quantization at none",
    ),
    Rule(
        "merged_copy_of_quantized",
        lambda stack: stack.merges and bool(stack.model.quantized),
        "the base's weights are quantized ({model.quantized}), and merging an adapter would round it away: "
        "register the unquantized checkpoint as a base model and merge there, or serve the adapter unmerged",
    ),
    Rule(
        "merged_copy_with_quantization",
        lambda stack: stack.merges and stack.quantizes,
        "a merged copy keeps the dtype of the base's weights, since quantization would round the adapter "
        "away: leave quantization at none",
    ),
    Rule(
        "merged_copy_is_local",
        lambda stack: stack.merges and not stack.local,
        "merged copies are written on your own machines, and SageMaker can serve them: set target.engine to "
        "local",
    ),
    Rule(
        "draft_vocabulary",
        _other_vocabulary,
        "the draft model has another vocabulary than the model: its tokens mean something else. Take a draft "
        "model of the same family, or ngram",
    ),
    Rule(
        "draft_architecture",
        lambda stack: (
            stack.local and stack.draft is not None and stack.draft.architecture not in ARCHITECTURES
        ),
        "the draft model's {draft.architecture} is not served by the worker",
    ),
    Rule(
        "eagle_is_not_served_here",
        lambda stack: stack.local and stack.recipe.speculation.method is Drafting.EAGLE,
        "EAGLE heads are trained and served by SageMaker: set speculation.method to ngram or draft, or "
        "target.engine to sagemaker",
    ),
    Rule(
        "packed_form_is_the_cpus",
        lambda stack: (
            stack.recipe.compilation.packed
            and (not stack.local or stack.recipe.target.hardware is not Hardware.CPU)
        ),
        "the packed form is what our CPU loops read: leave compilation.packed out for other targets",
    ),
    Rule(
        "gpu_kernels_at_start",
        lambda stack: (
            stack.local
            and stack.recipe.compilation.ahead_of_time
            and stack.recipe.target.hardware.capability > 0
        ),
        "kernels for GPUs are compiled by Triton at a host's first start and kept in its cache: leave "
        "compilation.ahead_of_time out for local GPUs",
    ),
    Rule(
        "one_device",
        lambda stack: stack.local and stack.recipe.tensor_parallel.degree > 1,
        "the worker computes a model on one device: set tensor_parallel.degree to 1, or the engine to "
        "sagemaker",
    ),
    Rule(
        "shards_of_one",
        lambda stack: stack.recipe.tensor_parallel.presharded and stack.recipe.tensor_parallel.degree == 1,
        "a tensor_parallel.degree of 1 leaves nothing to shard",
    ),
    Rule(
        "instance_of_sagemaker",
        lambda stack: stack.local and bool(stack.recipe.target.instance_type),
        "target.instance_type is SageMaker's: leave it out, or set target.engine to sagemaker",
    ),
)
SAGEMAKERS: Final = (
    Rule(
        "neuron_by_sagemaker",
        lambda stack: stack.local and stack.recipe.target.hardware is Hardware.NEURON,
        "Neuron targets (Trainium, Inferentia) are compiled by SageMaker's jobs alone: set target.engine to "
        "sagemaker",
    ),
    Rule(
        "sagemaker_draft_elsewhere",
        lambda stack: stack.local and stack.own_draft,
        "SageMaker's draft model is served by SageMaker alone: name a checkpoint of your own, or take ngram",
    ),
    Rule(
        "sagemaker_draft_component",
        lambda stack: stack.own_draft and stack.situation.inference_components,
        "SageMaker's draft model is refused on inference components: take a deployment with hosting "
        "endpoint, or bring a draft model",
    ),
    Rule(
        "sagemaker_draft_script",
        lambda stack: stack.own_draft and stack.situation.custom_inference_script,
        "SageMaker's draft model is refused with a custom inference script: leave the script out, or bring "
        "a draft model",
    ),
    Rule(
        "sagemaker_draft_local_testing",
        lambda stack: stack.own_draft and stack.situation.local_testing,
        "SageMaker's draft model is refused in local testing: test without speculation, or on an endpoint",
    ),
    Rule(
        "sagemaker_draft_fine_tuned",
        lambda stack: stack.own_draft and stack.situation.fine_tuned_outside_jumpstart,
        "SageMaker's draft model is refused for models that were fine-tuned outside of SageMaker JumpStart: "
        "bring a draft model",
    ),
    Rule(
        "sagemaker_compilation_with_speculation",
        lambda stack: not stack.local and stack.compiles and stack.speculates,
        "SageMaker refuses compilation together with speculation: leave compilation.ahead_of_time or "
        "speculation.method out",
    ),
    Rule(
        "sagemaker_compilation_with_sharding",
        lambda stack: (
            not stack.local
            and stack.recipe.compilation.ahead_of_time
            and stack.recipe.tensor_parallel.presharded
        ),
        "a compiled model holds the shards of its tensor_parallel.degree already: leave "
        "tensor_parallel.presharded or compilation.ahead_of_time out",
    ),
    Rule(
        "tensorrt_llama",
        lambda stack: (
            stack.recipe.builds_tensorrt_engine
            and any(_AFTER_LLAMA_3_0.search(name) for name in stack.model.names)
        ),
        "SageMaker compiles Llama models up to 3.0 for GPUs, not {model.names[0]}: quantize it, or compile "
        "it for hardware neuron",
    ),
    Rule(
        "sagemaker_hardware_of_instance",
        _other_hardware,
        "target.instance_type {recipe.target.instance_type} does not have the hardware "
        "{recipe.target.hardware}: set target.hardware to that of the type, or take another type",
    ),
    Rule(
        "sagemaker_needs_an_instance",
        lambda stack: not stack.local and not stack.recipe.target.instance_type,
        "SageMaker optimizes for an instance type: name it in target.instance_type",
    ),
    Rule(
        "sagemaker_accelerators",
        lambda stack: not stack.local and stack.recipe.target.hardware is Hardware.CPU,
        "SageMaker's optimization jobs are for GPU and Neuron instances, not for CPUs",
    ),
    Rule(
        "sagemaker_schemes",
        lambda stack: (
            not stack.local
            and stack.recipe.quantization not in (Quantization.NONE, Quantization.AWQ_G128, Quantization.FP8)
        ),
        "SageMaker quantizes by AWQ in groups of 128 and to FP8, not to {recipe.quantization}: set "
        "quantization to awq_int4_g128 or fp8",
    ),
    Rule(
        "sagemaker_neuron_quantization",
        lambda stack: _is_neuron(stack) and stack.quantizes,
        "SageMaker's AWQ and FP8 are for GPUs: leave quantization at none for Neuron",
    ),
    Rule(
        "sagemaker_neuron_speculation",
        lambda stack: _is_neuron(stack) and stack.speculates,
        "SageMaker speculates on GPUs: leave speculation.method at none for Neuron",
    ),
    Rule(
        "sagemaker_neuron_sharding",
        lambda stack: _is_neuron(stack) and stack.recipe.tensor_parallel.presharded,
        "SageMaker shards for GPUs: leave tensor_parallel.presharded out for Neuron, and compile instead",
    ),
    Rule(
        "compiled_shapes_elsewhere",
        lambda stack: (
            bool(stack.recipe.compilation.sequence_length or stack.recipe.compilation.batch_size)
            and (stack.local or not stack.recipe.compilation.ahead_of_time)
        ),
        "compilation.sequence_length and batch_size fix the shapes that SageMaker compiles for: leave them "
        "out, or set compilation.ahead_of_time and target.engine sagemaker",
    ),
    Rule(
        "compiled_sequence_length",
        lambda stack: stack.recipe.compilation.sequence_length > (stack.model.max_model_len or 1 << 31),
        "compilation.sequence_length is above the model's context of {model.max_model_len} tokens",
    ),
    Rule(
        "sagemaker_nothing_to_do",
        lambda stack: not stack.local and not _configs(stack.recipe) and not stack.speculates,
        "the recipe asks SageMaker for nothing: choose quantization, compilation, sharding or speculation",
    ),
    Rule(
        "sagemaker_draft_source",
        lambda stack: (
            not stack.local
            and bool(stack.recipe.speculation.draft_model)
            and not stack.own_draft
            and not stack.recipe.speculation.draft_model.startswith(("s3://", "hf://"))
        ),
        "SageMaker reads draft models from S3 or from the Hugging Face hub: set draft_model to "
        "s3://bucket/prefix, hf://organization/name, or sagemaker",
    ),
)


def reasons(stack: Stack) -> list[Reason]:
    """Return every reason to refuse a stack; empty if it is accepted."""
    return [
        Reason(rule.code, rule.text.format(recipe=stack.recipe, model=stack.model, draft=stack.draft))
        for rule in (*OURS, *SAGEMAKERS)
        if rule.applies(stack)
    ]


def _configs(recipe: Recipe) -> int:
    """Return how many OptimizationConfigs of CreateOptimizationJob a recipe takes.

    The job trains EAGLE heads; n-grams and draft models are settings of the container that serves.
    """
    return sum(
        (
            recipe.quantization is not Quantization.NONE,
            recipe.compilation.ahead_of_time,
            recipe.tensor_parallel.presharded,
            recipe.speculation.method is Drafting.EAGLE,
        )
    )
