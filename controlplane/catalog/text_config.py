"""Reads the language model's settings from config.json, also where it is one of several parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

_SECTIONS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections in which classes with several parts keep the language model's settings."""
_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
)
"""Names of the context length, by class."""
NOT_STATED: Final = 0
"""Context length of a model without a bound, such as Mamba, or whose configuration does not say it."""
_UNBOUNDED: Final = (None, -1)
_MOST_TOKENS: Final = 1 << 31
_DEFAULTS: Final = Path(__file__).with_name("context_lengths.json")


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's settings: a nested section, or the configuration itself."""
    for name in _SECTIONS:
        if isinstance(section := config.get(name), dict):
            return text_section(section)
    return config


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the language model's longest context in tokens; NOT_STATED if neither file nor class says.

    transformers leaves out of the file what equals the class's default, so the defaults count too. None means
    that the file gives something else than a length.
    """
    text = text_section(config)
    for name in _LENGTHS:
        for section in (text, config):
            if name in section and section[name] not in _UNBOUNDED:
                return _whole(section[name])
    return default_lengths().get(str(text.get("model_type")), NOT_STATED)


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype of the stored weights, by default float32; None if it is not a text."""
    for section in (config, text_section(config)):
        if dtype := section.get("dtype") or section.get("torch_dtype"):
            return dtype if isinstance(dtype, str) else None
    return "float32"


@cache
def default_lengths() -> Mapping[str, int]:
    """Return the default context length by `model_type`.

    From transformers 5.23; a test compares the file with the version that is installed.
    """
    lengths: dict[str, int] = json.loads(_DEFAULTS.read_text(encoding="utf-8"))
    return lengths


def _whole(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MOST_TOKENS:
        return None
    return value
