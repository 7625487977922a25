"""Bounds of OpenAI's and vLLM's request parameters, as gateway and bundled worker check them.

Each plane adds its own error texts. A field that names a plane states where that plane differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAX_INT64: Final = 2**63 - 1
MAX_TOKENS: Final = 1 << 20
MAX_MESSAGES: Final = 4096
MAX_PROMPTS: Final = 256
"""Most prompts of one completion request."""
MAX_STOPS: Final = 16
MAX_BIASES: Final = 1024
MAX_BIAS: Final = 100


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """Inclusive bounds of a number, and the worker's default.

    Attributes:
        worker_excludes_low: the worker refuses `low`; the gateway accepts it for other backends.
    """

    low: float
    high: float
    default: float
    worker_excludes_low: bool = False


@dataclass(frozen=True, slots=True)
class IntegerBounds:
    """Inclusive bounds of an integer.

    Attributes:
        gateway_only_high: only the gateway checks `high`; the worker accepts any 64-bit integer from `low`.
    """

    low: int
    high: int
    gateway_only_high: bool = False

    @property
    def worker_high(self) -> int:
        return MAX_INT64 if self.gateway_only_high else self.high


NUMBERS: Final[Mapping[str, NumberBounds]] = {
    "temperature": NumberBounds(0.0, 2.0, default=1.0),
    "top_p": NumberBounds(0.0, 1.0, default=1.0, worker_excludes_low=True),
    "min_p": NumberBounds(0.0, 1.0, default=0.0),
    "presence_penalty": NumberBounds(-2.0, 2.0, default=0.0),
    "frequency_penalty": NumberBounds(-2.0, 2.0, default=0.0),
    "repetition_penalty": NumberBounds(0.01, 10.0, default=1.0),
}
INTEGERS: Final[Mapping[str, IntegerBounds]] = {
    "n": IntegerBounds(1, 128),
    "max_tokens": IntegerBounds(1, MAX_TOKENS, gateway_only_high=True),
    "top_k": IntegerBounds(-1, 1 << 20, gateway_only_high=True),
    "seed": IntegerBounds(-(2**63), MAX_INT64),
    "min_tokens": IntegerBounds(0, MAX_TOKENS, gateway_only_high=True),
    "prompt_logprobs": IntegerBounds(0, 20),
    "truncate_prompt_tokens": IntegerBounds(-1, MAX_TOKENS, gateway_only_high=True),
}
"""Parameters of chat and completions."""
CHAT_INTEGERS: Final[Mapping[str, IntegerBounds]] = {
    "max_completion_tokens": IntegerBounds(1, MAX_TOKENS, gateway_only_high=True),
    "top_logprobs": IntegerBounds(0, 20),
}
COMPLETION_INTEGERS: Final[Mapping[str, IntegerBounds]] = {
    "max_tokens": IntegerBounds(0, MAX_TOKENS, gateway_only_high=True),
    "logprobs": IntegerBounds(0, 20),
}
"""`max_tokens` replaces the common bounds; both planes accept 0 only with `echo`."""
LIST_SIZES: Final = {"stop_token_ids": 64, "bad_words": 64, "allowed_token_ids": 1 << 16}
