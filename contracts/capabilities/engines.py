"""The engines that can run copies, by the names that copies are stored with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from contracts.capabilities.capability import BaseNeeds, Capability
from contracts.capabilities.traits import AdapterNeeds, Trait
from contracts.capabilities.vllm import examined_versions, vllm_capability
from contracts.capabilities.worker import SPARSE, WORKER

TGI: Final = Capability(engine="text-generation-inference", max_rank=None, images=None)
"""Its architectures are not in a table of ours. Its adapters have pairs on linear layers alone."""
TENSORRT_LLM: Final = Capability(engine="TensorRT-LLM")
NEURON: Final = Capability(engine="Neuron")
TRANSFORMERS: Final = Capability(
    engine="transformers with PEFT", traits=frozenset({Trait.DORA}), quantizations=frozenset()
)
"""The handler of PyTorch's images. PEFT has more, of which nothing is tested with several adapters."""
ENGINES: Final = ("worker", "vllm", "tgi", "tensorrt-llm", "neuron", "transformers")
"""Names of engines, as copies store them."""


def capability(engine: str, version: str = "") -> Capability | None:
    """Return what a version of an engine serves; None if that is not known.

    Args:
        engine: one of ENGINES; any other name is not known.
        version: of vLLM; "" if it is not known.
    """
    match engine:
        case "worker":
            return WORKER
        case "vllm":
            return vllm_capability(version) if version else None
        case "tgi":
            return TGI
        case "tensorrt-llm":
            return TENSORRT_LLM
        case "neuron":
            return NEURON
        case "transformers":
            return TRANSFORMERS
    return None


def newest_engines() -> tuple[Capability, ...]:
    """Return the engines whose architectures are known, vLLM in the newest examined version."""
    newest = vllm_capability()
    return (WORKER,) if newest is None else (WORKER, newest)


def base_offers(base: BaseNeeds) -> list[str]:
    """Return the engines that serve a base model, in words: `vLLM from 0.17.1 on`."""
    return list(_offers(base, lambda item: item.base_problem(base)))


def adapter_offers(base: BaseNeeds, needs: AdapterNeeds) -> list[str]:
    """Return the engines that serve an adapter, in words."""
    return list(_offers(base, lambda item: item.adapter_problem(base, needs)))


def image_offers(base: BaseNeeds) -> list[str]:
    """Return the engines that serve a base model with a vision part and its images, in words."""
    return list(
        _offers(base, lambda item: item.base_problem(base) or ("" if item.images else "reads text alone"))
    )


def _offers(base: BaseNeeds, problem: Callable[[Capability], str]) -> Iterator[str]:
    """Yield the engines without a problem; of vLLM since which examined version, up to the newest."""
    if not problem(WORKER):
        yield f"{WORKER.engine} (on the CPU)" if base.architecture in SPARSE else WORKER.engine
    versions = examined_versions()
    serving = [
        at
        for at, version in enumerate(versions)
        if (served := vllm_capability(version)) is not None and not problem(served)
    ]
    if not serving:
        return
    last = serving[-1]
    first = next(at for at in serving if serving[-1] - at == len(serving) - 1 - serving.index(at))
    if last == len(versions) - 1:
        yield f"vLLM from {versions[first]} on"
    else:
        yield f"vLLM {versions[first]} to {versions[last]}"
