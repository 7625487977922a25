"""Examines the corpus and renders docs/models.md."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from contracts.capabilities.capability import BaseNeeds
from contracts.capabilities.engines import adapter_offers, base_offers
from contracts.capabilities.vllm import examined_versions, vllm_capability
from controlplane.errors import InvalidInputError, RefusedError
from tests.parity.corpus.adapters import Adapter, Part, adapters
from tests.parity.corpus.models import Architecture, Task, build, checkpoint_tensors, classifier_of
from tests.parity.corpus.registration import accepted_mutations, check_adapter, register_base

PATH: Final = Path(__file__).parents[3] / "docs" / "models.md"
_HEAD: Final = """# Models

This table lists every causal, vision-language and sequence-classification architecture of transformers
{transformers}, with the adapters that Graftwork registers for it and the engines that serve them. A test
builds each architecture in the default sizes of its class, writes the header of its checkpoint, has PEFT
{peft} make adapters on it, and registers both by headers alone. `python -m tests.parity.corpus` writes this
page; `make test-slow` compares it.

- **Context**: tokens, as the catalogue reads it from the configuration. "not stated" means that the
  configuration has no length: the model has no bound, as Mamba, or does not say it. The catalogue stores 0,
  and [admission](admission.md) does not cap estimates by it.
- **Base model**: engines that serve the architecture. vLLM's versions are those of its
  [table](base-models.md#capabilities), {oldest} to {newest}.
- **Adapters**: parts that adapters may change, by the engines that serve such adapters. An adapter that no
  engine serves is registered all the same. `tests/parity/corpus/adapters.py` has the recipes.
- **Refused**: the published checkpoint fuses or splits the module's weights otherwise than transformers does,
  or has no module for it, so registration cannot compare shapes. Architectures whose
  adapters vLLM serves are not among these. `contracts/adapters/split_layers.py` has the fused layers that
  registration knows.

{count} adapters on {architectures} architectures were registered. {mutations} files whose shapes do not fit
were refused: of each adapter one matrix transposed, with another rank, with another width, without its
counterpart, and under another name.
"""
_COLUMNS: Final = "| architecture | context | base model | adapters |\n|---|---|---|---|\n"
_NOBODY: Final = "no engine yet"


@dataclass
class Row:
    """Result of registering one architecture and its adapters.

    Attributes:
        problem: why there is no model or no checkpoint to register; "" for none.
        offers: engines that serve each part's adapter, in words.
        refused: part -> reason.
        accepted: mutations that were accepted although they do not fit.
        num_mutations: of all adapters.
    """

    architecture: Architecture
    problem: str = ""
    context: int = 0
    base: list[str] = field(default_factory=list)
    offers: dict[Part, list[str]] = field(default_factory=dict)
    refused: dict[Part, str] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    num_mutations: int = 0

    @property
    def vllm_serves_adapters(self) -> bool:
        """True if some examined version of vLLM serves adapters on the architecture."""
        known = [vllm_capability(version) for version in examined_versions()]
        return any(item and item.adapter_traits(self.architecture.name) is not None for item in known)


def examine_all(architectures: Sequence[Architecture]) -> list[Row]:
    """Examine architectures in a process for each processor."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        rows: list[Row] = []
        for row in pool.map(examine, architectures):
            print(f"{len(rows)} {row.architecture.name}", file=sys.stderr, flush=True)
            rows.append(row)
        return rows


def examine(architecture: Architecture) -> Row:
    """Build an architecture, register it and its adapters, and break each adapter in five ways."""
    row = Row(architecture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = build(architecture)
            tensors = checkpoint_tensors(model)
        except Exception as error:  # any error of a class without a usable default configuration
            row.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
            return row
        try:
            base = register_base(model, tensors)
        except InvalidInputError as error:
            row.problem = f"not registered: {error}"
            return row
        row.context = base.max_model_len
        row.base = base_offers(BaseNeeds(base.architecture))
        for adapter in [*adapters(model, architecture.task, tensors), *_classifiers(architecture)]:
            try:
                needs = check_adapter(adapter, base)
            except RefusedError as error:
                row.refused[adapter.part] = str(error)
                continue
            row.offers[adapter.part] = adapter_offers(BaseNeeds(base.architecture), needs)
            for mutation, is_accepted in accepted_mutations(adapter, base):
                row.num_mutations += 1
                row.accepted += [f"{adapter.part}: {mutation}"] * is_accepted
    return row


def _classifiers(architecture: Architecture) -> Iterator[Adapter]:
    """Yield an adapter that classifies, made on the class with a head and served on this base."""
    if (other := classifier_of(architecture)) is None:
        return
    try:
        made = adapters(build(other), other.task, {})
        found = next((adapter for adapter in made if adapter.part is Part.CLASSIFIER), None)
    except Exception:  # as in `examine`; the classifier's own row has the reason
        return
    if found is not None:
        yield found


def render(rows: Iterable[Row]) -> str:
    """Return the page's text."""
    rows = list(rows)
    registered = [row for row in rows if not row.problem]
    versions = examined_versions()
    parts = [
        _HEAD.format(
            transformers=version("transformers"),
            peft=version("peft"),
            oldest=versions[0],
            newest=versions[-1],
            count=f"{sum(len(row.offers) for row in registered):,}",
            architectures=len(registered),
            mutations=f"{sum(row.num_mutations for row in registered):,}",
        )
    ]
    for task in Task:
        lines = [_line(row) for row in registered if row.architecture.task is task]
        parts.append(f"\n## {task}\n\n{_COLUMNS}{''.join(lines)}")
    parts.append(
        "\n## Not in the table\nThese classes have no default configuration from which a model can be"
    )
    parts.append(" built.\n\n| architecture | error of transformers |\n|---|---|\n")
    parts += [f"| {row.architecture.name} | {_cell(row.problem)} |\n" for row in rows if row.problem]
    return "".join(parts)


def _line(row: Row) -> str:
    context = f"{row.context:,}" if row.context else "not stated"
    base = ", ".join(row.base) or _NOBODY
    by_offer: dict[str, list[str]] = {}
    for part, offers in row.offers.items():
        by_offer.setdefault(", ".join(offers) or _NOBODY, []).append(part)
    served = "; ".join(f"{', '.join(parts)}: {offer}" for offer, parts in by_offer.items())
    for part, reason in row.refused.items():
        served += f"; {part}: refused ({_cell(reason)})"
    return f"| {row.architecture.name} | {context} | {base} | {served.removeprefix('; ')} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
