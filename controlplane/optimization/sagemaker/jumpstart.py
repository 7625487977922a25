"""Table of JumpStart models that SageMaker optimizes, as AWS's "Supported models reference" lists them.

The table has the rows that were read on AS_OF, in a stored copy of the page. SOURCE lists more models.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from contracts.recipes.recipe import Quantization

SOURCE: Final = "https://docs.aws.amazon.com/sagemaker/latest/dg/optimization-supported-models.html"
AS_OF: Final = dt.date(2026, 11, 27)
_SCHEMES: Final = {"INT4-AWQ": Quantization.AWQ_G128, "FP8": Quantization.FP8}
_ALL_FORMATS: Final = ("INT4-AWQ", "INT8-SmoothQuant", "FP8")
NEURON, TENSORRT_LLM = "neuron", "tensorrt_llm"


@dataclass(frozen=True, slots=True)
class JumpStartModel:
    """One model.

    Attributes:
        model_id: JumpStart's identifier.
        quantization: formats, as AWS names them.
        speculative_decoding: SageMaker provides a draft model, or serves your own.
        fast_model_loading: its weights can be sharded ahead of time.
        compilation: compilers, NEURON for Trainium and Inferentia, TENSORRT_LLM for GPUs.
    """

    model_id: str
    name: str
    quantization: tuple[str, ...] = _ALL_FORMATS
    speculative_decoding: bool = True
    fast_model_loading: bool = True
    compilation: tuple[str, ...] = (NEURON, TENSORRT_LLM)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The formats as values of a recipe's `quantization`; recipes have no SmoothQuant."""
        return tuple(_SCHEMES[item].value for item in self.quantization if item in _SCHEMES)


_LLAMA: Final = "meta-textgeneration-llama"
JUMPSTART_MODELS: Final = (
    JumpStartModel(f"{_LLAMA}-2-7b", "Meta Llama 2 7B"),
    JumpStartModel(f"{_LLAMA}-2-7b-f", "Meta Llama 2 7B Chat"),
    JumpStartModel(f"{_LLAMA}-2-13b", "Meta Llama 2 13B"),
    JumpStartModel(f"{_LLAMA}-2-13b-f", "Meta Llama 2 13B Chat"),
    JumpStartModel(f"{_LLAMA}-2-70b", "Meta Llama 2 70B"),
    JumpStartModel(f"{_LLAMA}-2-70b-f", "Meta Llama 2 70B Chat"),
    JumpStartModel(f"{_LLAMA}-3-8b", "Meta Llama 3 8B"),
    JumpStartModel(f"{_LLAMA}-3-8b-instruct", "Meta Llama 3 8B Instruct"),
    JumpStartModel(f"{_LLAMA}-3-70b", "Meta Llama 3 70B"),
    JumpStartModel(f"{_LLAMA}-3-70b-instruct", "Meta Llama 3 70B Instruct"),
    JumpStartModel(f"{_LLAMA}-codellama-13b", "Meta Code Llama 13B", compilation=(TENSORRT_LLM,)),
    JumpStartModel(
        f"{_LLAMA}-codellama-13b-instruct", "Meta Code Llama 13B Instruct", compilation=(TENSORRT_LLM,)
    ),
)
