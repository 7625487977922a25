"""Adapters that a job merges into a copy of their base model: found in the routes, brought when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.adapters.reference import AdapterRef, EngineName
from contracts.capabilities.capability import missing_text
from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import SPARSE, TRAITS, WORKER
from contracts.recipes.compatibility import EXPERTS_REASON
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError
from controlplane.optimization.adapter_versions import adapter_version
from controlplane.optimization.compared_adapters import adapters_bring
from controlplane.optimization.models import OptimizationJob
from controlplane.routes.selectors import route_refs


def adapter_to_merge(*, base_model: BaseModel, name: str) -> AdapterRef:
    """Return the reference of one adapter version that the worker can merge.

    Args:
        name: `tenant/adapter@v3`, or the version's engine name.

    Raises:
        InvalidInputError: the name has neither form, or the worker cannot merge the adapter.
        NotFoundError: the base model has no such version that is ready.
    """
    if (architecture := base_model.architecture) in SPARSE:
        raise InvalidInputError(f"{architecture} {EXPERTS_REASON}", field="adapter")
    return _mergeable(adapter_version(base_model=base_model, name=name, field="adapter"))


def _mergeable(ref: AdapterRef) -> AdapterRef:
    """Return the reference. Raises InvalidInputError if the worker cannot merge the adapter."""
    if Trait.FEATURE_EXTRACTION in ref.traits:
        # A merged copy would pool by the base's files, and answer chats.
        text = f"{ref.name} is an embedding adapter, which cannot be merged: serve it unmerged"
        raise InvalidInputError(text, field="adapter")
    if missing := set(ref.traits) - TRAITS:
        text = f"{WORKER.engine} does not serve {missing_text(missing, 1, None)}: {ref.name} cannot be merged"
        raise InvalidInputError(text, field="adapter")
    return ref


def adapter_bring(job: OptimizationJob, folder: Path, *, heartbeat: Callable[[], None]) -> str | None:
    """Copy the job's adapter below `folder`; return its folder, or None for a job without an adapter.

    Raises:
        InvalidInputError: the version was deleted, or its files are gone or changed.
        UnavailableError: the store does not answer.
    """
    ref = adapter_of(job)
    if ref is None:
        return None
    if ref.name not in route_refs(base_model=job.base_model.name, names=[ref.name]):
        raise InvalidInputError(
            f"{ref.name} was deleted since the merged copy was requested: merge another version",
            field="adapter",
        )
    item = {"name": "merged", "engine_name": ref.name, "sha256": ref.sha256, "prompts": ""}
    [brought] = adapters_bring([item], folder, heartbeat=heartbeat)
    return str(brought["folder"])


def adapter_of(job: OptimizationJob) -> AdapterRef | None:
    """Return the adapter that the job merges; None for a job without one."""
    return AdapterRef.from_dict(job.adapter) if job.adapter else None


def adapter_lineage(job: OptimizationJob) -> dict[str, Any]:
    """Return the merged adapter's part of the lineage; empty for a job without an adapter."""
    ref = adapter_of(job)
    if ref is None:
        return {}
    name = EngineName.parse(ref.name)
    told = {"tenant": name.tenant, "name": name.adapter, "version": name.version}
    return {"adapter": told | {"engine_name": ref.name, "sha256": ref.sha256, "rank": ref.rank}}
