"""Orders for the optimizer subprocess: input files, arguments and resources, and handling of the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from django.db.models import Sum

from contracts.recipes.model_facts import belongs, files_digest
from contracts.recipes.recipe import Recipe
from controlplane.catalog.models import BaseModel, Variant
from controlplane.errors import InvalidInputError
from controlplane.optimization.admission import Needs
from controlplane.optimization.artifacts import lineage_of
from controlplane.optimization.checkpoints import checkpoint_check
from controlplane.optimization.claims import Claim
from controlplane.optimization.compared_adapters import adapters_bring
from controlplane.optimization.database_text import storable
from controlplane.optimization.endings import work_end
from controlplane.optimization.instance_rates import price_of_order
from controlplane.optimization.merging import adapter_bring
from controlplane.optimization.models import ComparisonRun, OptimizationJob, PromptSet, Status, Work
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.optimization.results import job_keep
from controlplane.optimization.serving import served_how
from controlplane.optimization.traces import trace_csv
from controlplane.optimization.workspace import OUTPUT, checkpoint_folder, log_tail

_ORDER: Final = "order.json"
_PROMPTS: Final = "prompts.jsonl"
_MEASURED: Final = "measured.json"
Heartbeat = Callable[[], None]


class Order(Protocol):
    """A work as an order for the subprocess."""

    @property
    def needs(self) -> Needs:
        """Resources that the subprocess needs."""

    def prepare(self, folder: Path, heartbeat: Heartbeat) -> None:
        """Write the subprocess's input files into `folder`.

        Raises:
            InvalidInputError: a source has changed.
            UnavailableError: a source does not answer.
        """

    def arguments(self, folder: Path) -> list[str]:
        """Return the subprocess's command-line arguments."""

    def keep(self, claim: Claim, folder: Path, result: dict[str, Any], heartbeat: Heartbeat) -> None:
        """End the work with the subprocess's result."""


class JobOrder:
    """Order of an optimization job: `optimizer run`."""

    def __init__(self, job: OptimizationJob) -> None:
        self._job = job
        self._recipe = Recipe.from_dict(job.recipe)
        self._source_digest = ""

    @property
    def needs(self) -> Needs:
        recipe = self._recipe
        if self._job.adapter:
            return Needs.to_merge(self._job.machine, weights_bytes(self._job.base_model))
        return Needs.for_machine(
            self._job.machine,
            weights_bytes(self._job.base_model),
            devices=recipe.tensor_parallel.degree,
            capability=recipe.target.hardware.capability,
        )

    def prepare(self, folder: Path, heartbeat: Heartbeat) -> None:
        job, base = self._job, self._job.base_model
        checkpoint_check(job)
        source = checkpoint_folder(base, base.source, job.checkpoint_sha256, heartbeat=heartbeat)
        self._source_digest = files_digest(
            {item.name: item.sha256 for item in base.files.all() if belongs(item.name)}
        )
        order: dict[str, Any] = {"version": 1, "source": str(source), "recipe": job.recipe}
        if job.prompts is not None:
            order["calibration"] = str(prompts_file(folder, job.prompts))
        if (adapter := adapter_bring(job, folder, heartbeat=heartbeat)) is not None:
            order["adapter"] = adapter
        (folder / _ORDER).write_text(json.dumps(order))

    def arguments(self, folder: Path) -> list[str]:
        return ["run", str(folder / _ORDER), "--output", str(folder / OUTPUT)]

    def keep(self, claim: Claim, folder: Path, result: dict[str, Any], heartbeat: Heartbeat) -> None:
        if lineage_of(folder / OUTPUT)["source"]["digest"] != self._source_digest:
            raise InvalidInputError(
                f"{self._job.base_model.source} was changed since its digests were taken: have it read again,"
                " and ask for it again"
            )
        job_keep(claim, folder, result, heartbeat=heartbeat)


class ComparisonOrder:
    """Order of a comparison: `optimizer compare`."""

    def __init__(self, comparison: ComparisonRun) -> None:
        self._comparison = comparison
        self._variants = {
            variant.name: variant
            for variant in Variant.objects.filter(base_model_id=comparison.base_model_id).select_related(
                "optimization__artifact"
            )
        }

    @property
    def needs(self) -> Needs:
        """All arms together, which are loaded at once; an arm of unknown size counts as the base."""
        own = weights_bytes(self._comparison.base_model)
        sizes = [self._size(arm["variant"], own) for arm in self._comparison.arms]
        return Needs.for_machine(self._comparison.machine, sum(sizes))

    def prepare(self, folder: Path, heartbeat: Heartbeat) -> None:
        comparison = self._comparison
        load, quality = (
            dict(comparison.settings.get("load", {})),
            dict(comparison.settings.get("quality", {})),
        )
        if rows := load.pop("lengths", None):
            load["trace"] = str(_trace_file(folder, rows))
        if (prompts := comparison.prompts) is not None:
            load |= _prompts_of_load(folder, prompts)
        if comparison.texts is not None:
            quality["texts"] = str(prompts_file(folder, comparison.texts, name="texts.jsonl"))
        order = {
            "version": 1,
            "arms": [self._arm(arm, heartbeat) for arm in comparison.arms],
            "load": load,
            "quality": quality,
            "seed": comparison.settings.get("seed", 0),
            "adapters": adapters_bring(comparison.settings.get("adapters", ()), folder, heartbeat=heartbeat),
        }
        if price := comparison.settings.get("price"):
            order["price"] = price_of_order(price)
        # An attempt that died may have left its result, and the subprocess overwrites no file.
        (folder / _MEASURED).unlink(missing_ok=True)
        (folder / _ORDER).write_text(json.dumps(order))

    def arguments(self, folder: Path) -> list[str]:
        return ["compare", str(folder / _ORDER), "--output", str(folder / _MEASURED)]

    def keep(self, claim: Claim, folder: Path, result: dict[str, Any], heartbeat: Heartbeat) -> None:
        told = json.loads((folder / _MEASURED).read_text(encoding="utf-8"))
        work_end(claim, Status.DONE, "", "", log=log_tail(folder), percent=100.0, result=storable(told))

    def _arm(self, arm: Mapping[str, Any], heartbeat: Heartbeat) -> dict[str, Any]:
        priced = {"price": price_of_order(arm["price"])} if "price" in arm else {}
        return self._served(arm, heartbeat) | priced

    def _served(self, arm: Mapping[str, Any], heartbeat: Heartbeat) -> dict[str, Any]:
        base = self._comparison.base_model
        if not arm["variant"]:
            folder = checkpoint_folder(base, base.source, base.checkpoint_sha256, heartbeat=heartbeat)
            return {"name": arm["name"], "model": str(folder)}
        variant = self._variants.get(arm["variant"])
        if variant is None:
            raise InvalidInputError(f"{base.name} has no variant {arm['variant']} any more")
        # Only a job's files are content-addressed; other variants may change in place at the same size.
        content_name = (
            variant.source if hasattr(variant, "optimization") else f"{variant.source} {self._comparison.pk}"
        )
        digest = hashlib.sha256(content_name.encode()).hexdigest()
        folder = checkpoint_folder(base, variant.source, digest, heartbeat=heartbeat)
        served = served_how(variant, folder)
        return {
            "name": arm["name"],
            "model": str(folder),
            "flags": served.flags,
            "environment": served.environment,
        }

    def _size(self, name: str, default: int) -> int:
        job = getattr(self._variants.get(name), "optimization", None)
        return int(job.artifact.size) if job is not None and job.artifact is not None else default


def order_of(work: Work) -> Order:
    """Return the order for a work of this kind."""
    if isinstance(work, OptimizationJob):
        return JobOrder(work)
    if isinstance(work, ComparisonRun):
        return ComparisonOrder(work)
    raise TypeError(f"{work._meta.label} has no order")


def prompts_file(folder: Path, prompts: PromptSet, *, name: str = _PROMPTS) -> Path:
    """Write a prompt set into `folder`; return its path. Raises InvalidInputError, UnavailableError."""
    path = folder / name
    path.write_bytes(prompts_read(prompts=prompts))
    return path


def _prompts_of_load(folder: Path, prompts: PromptSet) -> dict[str, str]:
    """Return the load's fields; a bundled set is named, so that its bound on new tokens is the default."""
    if prompts.bundled is not None:
        return {"prompt_set": prompts.bundled.name.value}
    return {"prompts": str(prompts_file(folder, prompts))}


def _trace_file(folder: Path, rows: Sequence[Sequence[float]]) -> Path:
    path = folder / "trace.csv"
    path.write_text(trace_csv(rows))
    return path


def weights_bytes(base_model: BaseModel) -> int:
    """Return the bytes of the base's safetensors files."""
    weights = base_model.files.filter(name__endswith=".safetensors").aggregate(total=Sum("size"))["total"]
    return int(weights or 0)
