"""The catalogue's default context lengths are those of transformers."""

from __future__ import annotations

import pytest

from controlplane.catalog.text_config import default_lengths
from tests.parity import references

KNOWN = ("llama", "mistral", "qwen3", "gemma3_text", "llama4_text", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_default_is_that_of_the_configurations_class(model_type: str) -> None:
    assert default_lengths()[model_type] == references.CONFIG_MAPPING[model_type]().max_position_embeddings


@pytest.mark.slow
def test_every_default_is_that_of_the_configurations_class() -> None:
    """Of classes that the installed transformers has, and that have a default."""
    lengths = {}
    for model_type in references.CONFIG_MAPPING:
        try:
            config = references.CONFIG_MAPPING[model_type]()
        except Exception:
            continue  # A class without defaults has nothing to compare.
        lengths[config.model_type] = getattr(config, "max_position_embeddings", None)
    shared = lengths.keys() & default_lengths().keys()
    assert len(shared) > 200
    assert {name: lengths[name] for name in shared} == {name: default_lengths()[name] for name in shared}
