"""A checkpoint's linear layers in 8 or 4 bits, in a form that transformers and vLLM load as well."""

from optimizer.quantization.job import quantize
from optimizer.quantization.scheme import Scheme

__all__ = ["Scheme", "quantize"]
