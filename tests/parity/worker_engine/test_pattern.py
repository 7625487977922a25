"""Rank and alpha patterns select the value that PEFT selects."""

from __future__ import annotations

from contracts.adapters.pattern import SuffixTable
from tests.contracts.adapters.test_pattern import PATHS
from tests.parity import references


def test_the_first_key_counts_as_in_peft() -> None:
    keys = [
        r"^lm_head",
        "layers.1.self_attn.q_proj",
        r"layers\.\d\..*\.k_proj",
        "q_proj",
        "k_proj",
        r"^q_proj",
    ]
    table = SuffixTable(keys)
    for path in PATHS:
        index = table.find(path)
        assert (path if index is None else keys[index]) == references.get_pattern_key(keys, path)
