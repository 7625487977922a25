"""Capability of each version of vLLM, from the table in vllm.json.

The table is built from vLLM's source text by `tests/contracts/capabilities/vllm_table.py`. It says since
which examined version, and before which one, a fact holds: `0.11.2`, or `0.8.5..0.16.0`. Facts that stand in
code paths and not in declarations are below, each with its place in vLLM's source:

- `lora/peft_helper.py` refuses use_dora, bias and modules_to_save in every version; from 0.31 on
  modules_to_save may name the head of a classifier.
- `lora/utils.py:parse_fine_tuned_lora_name` refuses tensors that are no A or B: B's bias, trained rows.
- `lora/layers/fused_moe.py`: LoRA on experts since 0.11.2, on stacked experts since 0.12, where the model's
  class declares `is_3d_moe_weight`. Such a class takes no adapters of single experts.
- `lora/model_manager.py` has wrapped a router that its expert layer calls itself since 0.22.1; earlier
  versions leave its adapter out without an error.
- `lora/layers/column_parallel_linear.py`: layers of three slices and more (linear attention, state space)
  since 0.15.1.
- Towers need the flag `enable_tower_connector_lora`, which is off by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from contracts.capabilities.capability import Capability
from contracts.capabilities.traits import Trait

_TABLE: Final = Path(__file__).with_name("vllm.json")
_ALWAYS: Final = frozenset(
    {
        Trait.SHARED_EXPERTS,
        Trait.LATENT_ATTENTION,
        Trait.FUSED_PROJECTIONS,
        Trait.OTHER_MODULES,
        Trait.FEATURE_EXTRACTION,
        Trait.SEQUENCE_TO_SEQUENCE,
    }
)
"""Traits that every version serves where the class has LoRA: they are on linear layers, or name a task."""
_EXPERTS_SINCE: Final = (0, 11, 2)
_SLICES_SINCE: Final = (0, 15, 1)
_ROUTER_SINCE: Final = (0, 22, 1)
_HEADS_SINCE: Final = (0, 31, 0)
_QUANTIZATION_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "awq": ("auto_awq",),
    "gptq": ("auto_gptq", "gptq_marlin"),
    "mxfp4": ("gpt_oss_mxfp4",),
}
"""Names of newer versions for a method of config.json."""
_ENDPOINTS: Final[Mapping[str, str]] = {
    "chat": "0.8.5",
    "completions": "0.8.5",
    "embeddings": "0.8.5",
    "score": "0.8.5",
    "rerank": "0.8.5",
    "classify": "0.9.2",
    "responses": "0.10.2",
}
"""Since which version there is an endpoint."""

Version = tuple[int, ...]


@cache
def _table() -> Mapping[str, Any]:
    value: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return value


def version_of(text: str) -> Version | None:
    """Return a version's three numbers: (0, 11, 2) for `0.11.2rc1+cu128`, (0, 32, 0) for `0.32`.

    None for a text that does not begin with two numbers.
    """
    numbers: list[int] = []
    for part in text.strip().removeprefix("v").split(".")[:3]:
        digits = part[: next((at for at, sign in enumerate(part) if not sign.isdecimal()), len(part))]
        if not digits or len(digits) > 6:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return (*numbers, 0)[:3] if len(numbers) > 1 else None


def examined_versions() -> tuple[str, ...]:
    """Return the versions that the table was built from, oldest first."""
    return tuple(_table()["versions"])


@lru_cache(maxsize=128)  # servers tell their versions, so the texts are not ours to bound
def vllm_capability(version: str = "") -> Capability | None:
    """Return what a version serves; None if it is older than the table.

    A version between two of the table serves what either of them does, since the table does not say which of
    the changes it has; a version after the newest serves what that does.

    Args:
        version: as `/version` tells; "" for the newest examined one.
    """
    examined = examined_versions()
    number = version_of(version or examined[-1])
    rows = [item for item in map(version_of, examined) if item]
    reached = [item for item in rows if number and item <= number]
    if not reached:
        return None
    older, table = reached[-1], _table()
    at = rows[len(reached)] if older != number and len(reached) < len(rows) else older
    return Capability(
        engine=f"vLLM {version or examined[-1]}",
        architectures={
            name: _traits(facts, at) or _traits(facts, older)
            for name, facts in table["architectures"].items()
            if _holds(facts["served"], at) or _holds(facts["served"], older)
        },
        quantizations=_quantizations(table["quantizations"], at),
        max_rank=max(int(rank) for rank, span in table["ranks"].items() if _holds(span, at)),
        endpoints=frozenset(name for name, since in _ENDPOINTS.items() if _holds(since, at)),
        parameters={
            endpoint: frozenset(name for name, span in spans.items() if _holds(span, older))
            for endpoint, spans in table["parameters"].items()
        },
        images=True,
    )


def _holds(span: str, at: Version) -> bool:
    """Return True if a fact holds in version `at`; a span is `since` or `since..before`, joined by commas."""
    for part in span.split(","):
        since, _, before = part.partition("..")
        if (version_of(since) or ()) <= at and not (before and (version_of(before) or ()) <= at):
            return True
    return False


def _traits(facts: Mapping[str, str], at: Version) -> frozenset[Trait] | None:
    """Return the traits of adapters on one architecture; None if it has no adapters."""
    if not _holds(facts.get("lora", "9999.0"), at):
        return None
    found = set(_ALWAYS)
    if _holds(facts.get("embedding", "9999.0"), at):
        found |= {Trait.EMBEDDING, Trait.HEAD}
    if _holds(facts.get("stacked", "9999.0"), at):
        found.add(Trait.STACKED_EXPERTS)
    elif at >= _EXPERTS_SINCE:
        found.add(Trait.EXPERTS)
    if at >= _SLICES_SINCE:
        found |= {Trait.LINEAR_ATTENTION, Trait.STATE_SPACE}
    if at >= _ROUTER_SINCE:
        found.add(Trait.ROUTER)
    if at >= _HEADS_SINCE:
        found.add(Trait.CLASSIFICATION)
    return frozenset(found)


def _quantizations(spans: Mapping[str, str], at: Version) -> frozenset[str]:
    """Return the methods of a version, also by the names that config.json has for them."""
    found = {name for name, span in spans.items() if _holds(span, at)}
    found |= {name for name, newer in _QUANTIZATION_NAMES.items() if found & set(newer)}
    return frozenset(found)
