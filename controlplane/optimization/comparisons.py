"""Creates and removes comparisons: measurements of several arms of one base model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction

from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.selectors import variant_get
from controlplane.deployments.journal import actor_name
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.compared_adapters import adapters_chosen
from controlplane.optimization.database_text import storable
from controlplane.optimization.events import event_add
from controlplane.optimization.instance_rates import price_resolved
from controlplane.optimization.models import OPEN, ComparisonRun, Machine, PromptSet
from controlplane.optimization.queueing import work_enqueue
from controlplane.optimization.services import identity_of
from controlplane.optimization.workspace import work_forget
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot

MOST_ARMS: Final = 8
ORIGINAL: Final = "original"


@transaction.atomic
def comparison_create(
    *,
    base_model: BaseModel,
    arms: Sequence[Mapping[str, Any]],
    adapters: Sequence[Mapping[str, str]] = (),
    name: str = "",
    machine: str = "",
    prompts: PromptSet | None = None,
    texts: PromptSet | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[ComparisonRun, bool]:
    """Create a comparison and return (comparison, True), or (the open one with equal input, False).

    Args:
        arms: `variant` ("" for the base's own checkpoint) and `name` ("" for the variant's name); the first
            is the baseline. `price` is that of the arm's machine, where it differs.
        adapters: `engine_name` of routed versions, and optionally their own `prompts`.
        machine: cpu or gpu; empty derives it from the variants.
        settings: load, quality, price and seed, as `compare` takes them; `load.lengths` are a trace's rows,
            and a price may name an instance type and a plan of the table of instance prices.

    Raises:
        InvalidInputError: too few or too many arms, duplicate names, settings that cannot be stored, or an
            instance type without a rate.
        NotFoundError: the base has no such variant, or an adapter has no route.
        ConflictError: the checkpoint's digests are not computed yet.
    """
    if base_model.digest_status != BaseModel.Digest.DONE:
        raise ConflictError(
            f"the digests of {base_model.name}'s checkpoint are {base_model.digest_status}: wait for them"
        )
    settings = dict(settings or {})
    if storable(settings) != settings:
        raise InvalidInputError(
            "load, quality or price has a text or a number that cannot be stored: remove NUL, lone"
            " surrogates, NaN and infinity",
            field="quality",
        )
    if machine == Machine.SAGEMAKER:
        raise InvalidInputError(
            "comparisons are measured on cpu or gpu: SageMaker's own are benchmarks", field="machine"
        )
    if not 2 <= len(arms) <= MOST_ARMS:
        raise InvalidInputError(
            f"a comparison has 2 to {MOST_ARMS} arms, the original among them", field="arms"
        )
    if price := settings.get("price"):
        settings["price"] = price_resolved(price)
    variants = [_variant(base_model, arm.get("variant", "")) for arm in arms]
    named = _named(arms)
    machine = machine or _machine(variants)
    selected = adapters_chosen(base_model=base_model, adapters=adapters)
    _demand_one_load(settings.get("load", {}), selected, prompts)
    if selected:
        settings["adapters"] = selected
    values = {"arms": named, "settings": settings, "machine": machine}
    identity = identity_of(
        base_model=base_model.pk,
        checkpoint=base_model.checkpoint_sha256,
        prompts=prompts.pk if prompts else "",
        texts=texts.pk if texts else "",
        **values,
    )
    base_model = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    existing = ComparisonRun.objects.filter(identity=identity, status__in=OPEN).first()
    if existing is not None:
        return existing, False
    comparison = ComparisonRun.objects.create(
        base_model=base_model,
        name=name[:100],
        prompts=prompts,
        texts=texts,
        identity=identity,
        created_by=actor_name(),
        **values,
    )
    event_add(comparison, "asked", ", ".join(arm["name"] for arm in named))
    work_enqueue(comparison)
    audit_record(tenant="", action="comparison.create", target=comparison, after=snapshot(comparison))
    return comparison, True


@transaction.atomic
def comparison_remove(*, comparison: ComparisonRun) -> None:
    """Remove a comparison that has ended.

    Raises:
        ConflictError: it has not ended.
    """
    row = ComparisonRun.objects.select_for_update().get(pk=comparison.pk)
    if row.is_open:
        raise ConflictError(f"{row} is {row.status}: cancel it first")
    audit_record(tenant="", action="comparison.remove", target=row, before=snapshot(row))
    transaction.on_commit(lambda: work_forget(comparison))
    row.delete()


def _variant(base_model: BaseModel, name: str) -> Variant | None:
    return variant_get(base_model=base_model, name=name) if name else None


def _demand_one_load(
    load: Mapping[str, Any], adapters: Sequence[Mapping[str, str]], prompts: PromptSet | None
) -> None:
    """Raises InvalidInputError if two sources of load are given, or adapters are required but missing."""
    sources = [name for name in ("trace", "lengths") if name in load] + (["prompts"] if prompts else [])
    if len(sources) > 1:
        raise InvalidInputError(f"{' and '.join(sources)} exclude each other: give one", field="load")
    if load.get("adapters") and not adapters:
        raise InvalidInputError("load.adapters requires at least one adapter", field="load")
    if "speeds" in load:
        _demand_arrivals(load)


def _demand_arrivals(load: Mapping[str, Any]) -> None:
    """Raises InvalidInputError if the load has no arrival times to replay, or also sets a concurrency."""
    if "concurrency" in load:
        raise InvalidInputError("load.speeds and load.concurrency exclude each other: give one", field="load")
    if "trace" not in load and "lengths" not in load:
        raise InvalidInputError("load.speeds requires a trace: give load.trace or load.lengths", field="load")
    if any(len(row) < 3 for row in load.get("lengths", ())):
        raise InvalidInputError(
            "load.speeds replays arrivals, which this trace does not tell: each request needs its seconds"
            " since the trace began (arrival_s, the third number of a row)",
            field="load",
        )


def _named(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    named: list[dict[str, Any]] = []
    for arm in arms:
        variant = arm.get("variant", "")
        price = {"price": price_resolved(arm["price"])} if arm.get("price") else {}
        named.append({"name": (arm.get("name") or variant or ORIGINAL)[:63], "variant": variant, **price})
    names = [arm["name"] for arm in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(f"two arms are named {twice[0]!r}: use different names", field="arms")
    return named


def _machine(variants: Sequence[Variant | None]) -> Machine:
    """Return GPU if any variant was optimized for one, else CPU; None is the base model itself."""
    jobs = (getattr(variant, "optimization", None) for variant in variants)
    on_gpu = any(job is not None and job.machine != Machine.CPU for job in jobs)
    return Machine.GPU if on_gpu else Machine.CPU
