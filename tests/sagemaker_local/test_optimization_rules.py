"""The local SageMaker accepts and refuses the same combinations of optimizations as the service."""

from __future__ import annotations

from typing import Any

import pytest

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.optimization_rules import check_combination

AWQ = {"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}}}
SMOOTH = {"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "smoothquant"}}}
COMPILED: dict[str, Any] = {"ModelCompilationConfig": {"OverrideEnvironment": {}}}
SHARDED: dict[str, Any] = {"ModelShardingConfig": {"OverrideEnvironment": {}}}
EAGLE = {"ModelSpeculativeDecodingConfig": {"Technique": "EAGLE"}}
GPU, NEURON = "ml.g5.12xlarge", "ml.inf2.48xlarge"
LMI = "1.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.38.0-lmi29.0.0-cu130"
TRT = "1.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.33.0-tensorrtllm0.21.0-cu128"


def imaged(config: dict[str, Any], image: str) -> dict[str, Any]:
    return {name: {**settings, "Image": image} for name, settings in config.items()}


@pytest.mark.parametrize(
    ("configs", "instance_type"),
    [
        ([AWQ], GPU),
        ([AWQ, SHARDED], GPU),
        ([AWQ, EAGLE], GPU),
        ([COMPILED], GPU),
        ([AWQ, COMPILED], GPU),
        ([SMOOTH, COMPILED], GPU),
        ([COMPILED], NEURON),
        ([imaged(COMPILED, TRT)], GPU),
        ([imaged(AWQ, LMI)], GPU),
    ],
)
def test_accepted(configs: list[dict[str, Any]], instance_type: str) -> None:
    check_combination(configs, instance_type)


@pytest.mark.parametrize(
    ("configs", "instance_type", "says"),
    [
        ([SMOOTH], GPU, "Quantization by smoothquant is not supported for GPU instances without"),
        ([COMPILED, EAGLE], GPU, "ModelSpeculativeDecodingConfig is not supported for GPU instances with"),
        ([COMPILED, SHARDED], GPU, "ModelShardingConfig is not supported for GPU instances with"),
        ([COMPILED, AWQ], NEURON, "ModelQuantizationConfig is not supported for Neuron"),
        ([COMPILED, SHARDED], NEURON, "ModelShardingConfig is not supported for Neuron"),
        ([EAGLE], NEURON, "ModelSpeculativeDecodingConfig is not supported for Neuron"),
        ([imaged(COMPILED, LMI)], GPU, "Image .* does not support optimizations for GPU instances with"),
        ([imaged(AWQ, TRT)], GPU, "Image .* does not support optimizations for GPU instances without"),
    ],
)
def test_refused(configs: list[dict[str, Any]], instance_type: str, says: str) -> None:
    with pytest.raises(ValidationException, match=says):
        check_combination(configs, instance_type)
