"""Compute what a copy of a base model needs of an instance, from the checkpoint's shapes.

    device memory  =  weights  +  max_loras x one adapter at max_lora_rank  +  KV cache  +  draft model
    KV cache       =  concurrency x tokens of a sequence x bytes of a token  +  a fifth to spare
    accelerators   =  the smallest count that divides the KV heads' width and has that much memory

The engine allocates the cache in pages from what is left of `gpu_memory_utilization`, so more sequences than
the concurrency run together as long as they are shorter.

Each term becomes a sentence of `Requirements.reasons`, so that operators can follow the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.deployments.sizing.instances import INSTANCES, Instance
from controlplane.errors import InvalidInputError

GIB: Final = 1 << 30
MIB: Final = 1 << 20
KV_HEADROOM: Final = 0.2
"""Spare KV cache beyond the concurrent sequences, for cached prefixes and fragments of pages."""
ENGINE_GIB: Final = 1.0
"""CUDA context, activations and recorded graphs per GPU; a conservative guess."""
SYSTEM_GIB: Final = 2
"""Memory of an instance that SageMaker's agent and the operating system use."""
CONTAINER_GIB: Final = 2.0
"""Host memory of the server process, without weights and adapters."""
_BYTES: Final[Mapping[str, int]] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1}
_LAYERS: Final = "model.layers."
"""Of the language model: a vision tower has layers of the same names, but no KV cache and no adapters."""
_KV: Final = ("self_attn.k_proj", "self_attn.v_proj")
_LORA: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a checkpoint.

    Attributes:
        weight_bytes: all parameters as stored.
        kv_bytes: keys and values of one token, over all layers.
        kv_width: outputs of one layer's k_proj, which tensor parallelism divides.
        lora_parameters: parameters of a rank-1 adapter on every linear layer.
        element_bytes: bytes per value of weights, KV cache and adapters.
        max_model_len: context length in tokens; 0 if the checkpoint states none.
    """

    weight_bytes: int
    kv_bytes: int
    kv_width: int
    lora_parameters: int
    element_bytes: int
    max_model_len: int

    @classmethod
    def from_modules(
        cls, modules: Mapping[str, Sequence[int]], *, dtype: str, max_model_len: int, file_bytes: int = 0
    ) -> Shape:
        """Return the sizes of a checkpoint.

        Args:
            modules: a module's path -> its weight's shape, as the catalogue stores them.
            file_bytes: total size of the weight files, if known: exact, however heads are tied.

        Raises:
            InvalidInputError: the dtype has no known size, or the checkpoint has no attention layers.
        """
        element = _BYTES.get(dtype)
        if element is None:
            raise InvalidInputError(f"the size of dtype {dtype!r} is not known; known: {', '.join(_BYTES)}")
        layers = {path: shape for path, shape in modules.items() if path.startswith(_LAYERS)}
        kv = [shape for path, shape in layers.items() if path.endswith(_KV) and len(shape) == 2]
        if not kv:
            raise InvalidInputError(
                "the checkpoint has no k_proj and v_proj, so its KV cache has no known size"
            )
        lora = sum(sum(shape) for path, shape in layers.items() if path.endswith(_LORA) and len(shape) == 2)
        return cls(
            weight_bytes=file_bytes or sum(math.prod(shape) for shape in modules.values()) * element,
            kv_bytes=sum(shape[0] for shape in kv) * element,
            kv_width=min(shape[0] for shape in kv),
            lora_parameters=lora,
            element_bytes=element,
            max_model_len=max_model_len,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """Load that one copy must serve at once.

    Attributes:
        sequences: most requests that run together.
        concurrency: requests of full length that the KV cache must hold at once; 0 for all `sequences`.
        tokens: context length of each; 0 uses the checkpoint's maximum.
        max_loras: adapters in device memory at once; 0 for none.
        max_cpu_loras: adapters in host memory.
        draft: the draft model of speculative decoding; None without one, or if its size is unknown.
        gpu_memory_utilization: share of a GPU's memory that the engine takes.
        devices: accelerators that the options demand; 0 takes the fewest that suffice.
    """

    sequences: int = 32
    concurrency: int = 0
    tokens: int = 0
    max_loras: int = 4
    max_lora_rank: int = 16
    max_cpu_loras: int = 0
    draft: Shape | None = None
    gpu_memory_utilization: float = 0.9
    devices: int = 0


@dataclass(frozen=True, slots=True)
class Requirements:
    """ComputeResourceRequirements of one copy, with reasons.

    Attributes:
        copies_per_instance: copies that fit on one instance.
        kv_tokens: tokens that fit into the KV cache.
        reasons: a sentence for each term.
    """

    accelerators: int
    cpus: float
    memory_mb: int
    copies_per_instance: int
    kv_tokens: int
    reasons: tuple[str, ...]


def requirements(shape: Shape, instance_type: str, load: Load) -> Requirements:
    """Return the compute requirements of one copy on an instance type.

    Raises:
        InvalidInputError: the type is unknown, or one copy does not fit; the message says what would.
    """
    instance = INSTANCES.get(instance_type)
    if instance is None:
        raise InvalidInputError(
            f"the size of {instance_type!r} is not known: set compute requirements manually, or use one of "
            + ", ".join(INSTANCES),
            field="instance_type",
        )
    longest = shape.max_model_len or load.tokens
    if not longest:
        raise InvalidInputError(
            "the checkpoint states no context length, so its KV cache has no known size: set max_model_len",
            field="options",
        )
    tokens = min(load.tokens or longest, longest)
    adapter = shape.lora_parameters * load.max_lora_rank * shape.element_bytes
    kv = _kv_cache(shape, load, tokens)
    lora = load.max_loras * adapter
    draft = load.draft.weight_bytes + _kv_cache(load.draft, load, tokens) if load.draft else 0
    device = shape.weight_bytes + kv + lora + draft
    stated = f" (compute.concurrency, of {load.sequences} that may run)" if load.concurrency else ""
    reasons = [
        f"weights: {_gib(shape.weight_bytes)}",
        f"KV cache: {load.concurrency or load.sequences} sequences{stated} of {tokens} tokens at "
        f"{shape.kv_bytes / 1024:.4g} KiB a token, and {KV_HEADROOM:.0%} to spare: {_gib(kv)}",
    ]
    if lora:
        reasons.append(
            f"adapters: {load.max_loras} in device memory at rank {load.max_lora_rank}, "
            f"{_mib(adapter)} each: "
            f"{_gib(lora)}"
        )
    if draft:
        reasons.append(f"draft model: its weights and KV cache: {_gib(draft)}")
    host = max(load.max_cpu_loras, load.max_loras) * adapter + CONTAINER_GIB * GIB
    if instance.accelerators:
        found = _on_gpus(shape, instance, device, host, load, reasons)
        reasons.append(_paged_cache(shape, instance, found[0], device - kv, load, tokens))
    else:
        found = _on_cpus(instance, device, host, reasons)
    copies = _copies(instance, *found)
    accelerators, cpus, memory = found
    reasons.append(f"{copies} {'copy fits' if copies == 1 else 'copies fit'} on one {instance.name}")
    room = kv // shape.kv_bytes
    return Requirements(accelerators, cpus, memory, copies, room, tuple(reasons))


def _kv_cache(shape: Shape, load: Load, tokens: int) -> int:
    sequences = load.concurrency or load.sequences
    return math.ceil(sequences * tokens * shape.kv_bytes * (1 + KV_HEADROOM))


def _usable(instance: Instance, load: Load) -> float:
    """Return the bytes of one accelerator that weights, adapters and KV cache can use."""
    return instance.accelerator_gib * GIB * load.gpu_memory_utilization - ENGINE_GIB * GIB


def _paged_cache(shape: Shape, instance: Instance, count: int, others: int, load: Load, tokens: int) -> str:
    """Return the sentence about the memory that is left for pages. `others`: bytes of everything else."""
    left = count * _usable(instance, load) - others
    fit = int(left // shape.kv_bytes)
    return (
        f"pages: {_gib(left)} are left for the KV cache, {fit} tokens or {fit / tokens:.1f} sequences of"
        f" {tokens}; up to {load.sequences} run while they are shorter, and others wait for pages"
    )


def _on_gpus(
    shape: Shape, instance: Instance, device: int, host: float, load: Load, reasons: list[str]
) -> tuple[int, float, int]:
    utilization, each = load.gpu_memory_utilization, _usable(instance, load)
    counts = [*(2**power for power in range(5) if 2**power < instance.accelerators), instance.accelerators]
    if load.devices:
        counts = [_demanded(instance, load.devices)]
        reasons.append(f"tensor_parallel takes {load.devices} {instance.accelerator}s of each copy")
    fitting = [count for count in counts if count * each >= device and shape.kv_width % count == 0]
    reasons.append(
        f"a {instance.accelerator} of {instance.name} has {instance.accelerator_gib} GiB, of which "
        f"{_gib(each)} are left at gpu_memory_utilization {utilization:g} and {ENGINE_GIB:.0f} GiB for the "
        f"engine"
    )
    if not fitting:
        raise InvalidInputError(
            f"one copy needs {_gib(device)} of device memory ({'; '.join(reasons)}): {instance.name} has "
            f"{instance.accelerators} of them, which is too little. Lower the sequences or their "
            f"tokens, state a smaller compute.concurrency, or take "
            f"{_larger(device, shape.kv_width, utilization)}",
            field="instance_type",
        )
    count = fitting[0]
    # Weights pass through host memory on their way to the device, one GPU's shard at a time.
    memory = math.ceil((host + shape.weight_bytes / count) / MIB)
    reasons.append(f"together {_gib(device)}: {count} {instance.accelerator}{'s' if count > 1 else ''}")
    reasons.append(
        f"host memory: the server, adapters and weights on their way to the device: {_gib(memory * MIB)}"
    )
    available = (instance.memory_gib - SYSTEM_GIB) * GIB
    if memory * MIB > available:
        raise InvalidInputError(
            f"one copy needs {_gib(memory * MIB)} of host memory, and {instance.name} has "
            f"{_gib(available)} to "
            "give: lower max_cpu_loras, or take a type with more",
            field="instance_type",
        )
    return count, float(max(1, instance.cpus * count // (2 * instance.accelerators))), memory


def _demanded(instance: Instance, devices: int) -> int:
    """Return the accelerators that tensor_parallel demands. Raises InvalidInputError if there are fewer."""
    if devices > instance.accelerators:
        raise InvalidInputError(
            f"options.tensor_parallel takes {devices} {instance.accelerator}s, and {instance.name} has"
            f" {instance.accelerators}: lower it, or take a type with more",
            field="options.tensor_parallel",
        )
    return devices


def _on_cpus(instance: Instance, device: int, host: float, reasons: list[str]) -> tuple[int, float, int]:
    memory = math.ceil((device + host) / MIB)
    reasons.append(f"no GPU: all of it, and the server, in host memory: {_gib(memory * MIB)}")
    available = (instance.memory_gib - SYSTEM_GIB) * GIB
    if memory * MIB > available:
        raise InvalidInputError(
            f"one copy needs {_gib(memory * MIB)} ({'; '.join(reasons)}), and {instance.name} has "
            f"{_gib(available)} to give: lower the sequences or their tokens, or take a larger type",
            field="instance_type",
        )
    # Decoding on a CPU uses all cores; leave one for SageMaker's agent.
    return 0, float(max(1, instance.cpus - 1)), memory


def _copies(instance: Instance, accelerators: int, cpus: float, memory: int) -> int:
    by_memory = (instance.memory_gib - SYSTEM_GIB) * GIB // (memory * MIB)
    by_cpu = int(instance.cpus // cpus)
    by_gpu = instance.accelerators // accelerators if accelerators else by_cpu
    return max(1, min(by_memory, by_cpu, by_gpu))


def _larger(device: int, width: int, utilization: float) -> str:
    """Return the smallest known types on which a copy would fit."""
    found = []
    for instance in INSTANCES.values():
        each = instance.accelerator_gib * GIB * utilization - ENGINE_GIB * GIB
        if (
            instance.accelerators
            and instance.accelerators * each >= device
            and width % instance.accelerators == 0
        ):
            found.append((instance.accelerators * instance.accelerator_gib, instance.cpus, instance.name))
    return " or ".join(name for *_, name in sorted(found)[:2]) or "a model that is quantized"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"
