"""A checkpoint's linear layers in 8 or 4 bits, in a form that transformers and vLLM load as well."""

from worker_engine.optimization.quantization.job import quantize
from worker_engine.optimization.quantization.scheme import Scheme

__all__ = ["Scheme", "quantize"]
