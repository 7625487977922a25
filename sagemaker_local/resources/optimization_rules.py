"""Combinations of optimizations that SageMaker accepts in one job, by the container that carries them out.

The table is that of the SageMaker Python SDK (`sagemaker/serve/validations/optimization.py`, August 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException

_QUANTIZE: Final = "OPTION_QUANTIZE"
_NEURON_FAMILIES: Final = ("inf2", "trn1", "trn1n")


@dataclass(frozen=True, slots=True)
class Container:
    """An optimization container.

    Attributes:
        configs: members of OptimizationConfig that it carries out.
        techniques: values of OPTION_QUANTIZE that it carries out.
        tag: part of its image's tag.
    """

    title: str
    configs: frozenset[str]
    techniques: frozenset[str]
    tag: str


_VLLM: Final = Container(
    "GPU instances without compilation",
    frozenset({"ModelQuantizationConfig", "ModelShardingConfig", "ModelSpeculativeDecodingConfig"}),
    frozenset({"awq", "fp8"}),
    "-lmi",
)
_TENSORRT_LLM: Final = Container(
    "GPU instances with compilation",
    frozenset({"ModelQuantizationConfig", "ModelCompilationConfig"}),
    frozenset({"awq", "fp8", "smoothquant"}),
    "-tensorrtllm",
)
_NEURON: Final = Container("Neuron instances", frozenset({"ModelCompilationConfig"}), frozenset(), "-neuronx")
_TAGS: Final = (_VLLM.tag, _TENSORRT_LLM.tag, _NEURON.tag)


def check_combination(configs: Sequence[Mapping[str, Any]], instance_type: str) -> None:
    """Raise ValidationException for optimizations that no container carries out together."""
    given = {name: settings for config in configs for name, settings in config.items()}
    container = _container(given, instance_type)
    for name in given:
        if name not in container.configs:
            raise ValidationException(f"{name} is not supported for {container.title}.")
    technique = given.get("ModelQuantizationConfig", {}).get("OverrideEnvironment", {}).get(_QUANTIZE, "awq")
    if "ModelQuantizationConfig" in given and technique not in container.techniques:
        raise ValidationException(f"Quantization by {technique} is not supported for {container.title}.")
    for name, settings in given.items():
        image = settings.get("Image", "")
        # Only tags of LMI's images name an engine; an image of the customer's own is taken as it is.
        if any(tag in image for tag in _TAGS) and container.tag not in image:
            raise ValidationException(
                f"{name}.Image {image} does not support optimizations for {container.title}."
            )


def _container(given: Mapping[str, Any], instance_type: str) -> Container:
    if instance_type.split(".")[1] in _NEURON_FAMILIES:
        return _NEURON
    return _TENSORRT_LLM if "ModelCompilationConfig" in given else _VLLM
