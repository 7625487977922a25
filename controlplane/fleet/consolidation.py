"""Plans and executes the consolidation of a deployment's traffic onto fewer copies, from recent usage."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from controlplane.deployments.containers.images import BUNDLED_WORKER, OTHER_SERVER
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.journal import step_add
from controlplane.deployments.models import Copy, Deployment, Scaling, Target
from controlplane.deployments.phases.recorder import scale_ups_overtake
from controlplane.deployments.placement.planner import Plan, Traffic, plan
from controlplane.deployments.scaling.selectors import policy_of
from controlplane.deployments.scheduling import RECONCILE_TASK
from controlplane.deployments.selectors import deployment_locked
from controlplane.deployments.services import deployment_update
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.models import UsageEventRow
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue

MOST_MINUTES: Final = 60


def traffic_of(*, copies: Sequence[str], base_model: str, minutes: int, now: dt.datetime) -> list[Traffic]:
    """Return each adapter's traffic on `copies` in the last `minutes`, the busiest first.

    Concurrency is the total duration of the requests divided by the window. Running requests have no usage
    event yet and are not counted.
    """
    since = now - dt.timedelta(minutes=minutes)
    # The filter on days limits PostgreSQL to their partitions.
    rows = UsageEventRow.objects.filter(
        day__range=(since.astimezone(dt.UTC).date(), now.astimezone(dt.UTC).date()),
        base_model=base_model,
        endpoint__in=list(copies),
        started_at__gte=int(since.timestamp() * 1000),
    )
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for adapter, copy, spent in rows.values_list("adapter", "endpoint").annotate(spent=Sum("duration_ms")):
        found[adapter][copy] = float(spent) / (minutes * 60_000)
    traffic = [
        Traffic(adapter, sum(by_copy.values()), tuple(sorted(by_copy, key=lambda copy: -by_copy[copy])))
        for adapter, by_copy in found.items()
    ]
    return sorted(traffic, key=lambda item: (-item.concurrency, item.adapter))


def consolidation_plan(*, deployment: Deployment, minutes: int) -> tuple[Plan, list[Traffic]]:
    """Return a consolidation plan and the traffic on which it is based.

    Raises:
        InvalidInputError: the target is SageMaker, which routes by itself, or the minutes are out of bounds.
    """
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        raise InvalidInputError(
            "SageMaker routes among its copies itself: set the number of copies with a scaling policy",
            field="target",
        )
    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidInputError(f"minutes must be an integer from 1 to {MOST_MINUTES}", field="minutes")
    copies = list(
        Copy.objects.filter(deployment=deployment).order_by("created_at").values_list("pk", flat=True)
    )
    image = OTHER_SERVER if deployment.target.kind == Target.Kind.OPENAI_HTTP else BUNDLED_WORKER
    options = LmiOptions.from_values(deployment.options, image, hosting=deployment.hosting)
    traffic = traffic_of(
        copies=copies, base_model=deployment.base_model.name, minutes=minutes, now=timezone.now()
    )
    least = min(len(copies), max(1, copies_in_bounds(deployment)))
    bears = partial(plan, sequences=options.max_rolling_batch_size, adapters=options.cpu_loras)
    made = bears(copies, traffic, least=least)
    for count in range(len(made.keep), len(copies)):
        # Prefer to keep the oldest copies over those that packing alone would choose.
        first = bears(copies[:count], traffic, least=min(least, count))
        if not first.short:
            idle = tuple(copy for copy in copies if copy not in first.keep)
            return replace(first, spare=idle), traffic
    return replace(made, keep=tuple(copies), spare=()), traffic


def copies_in_bounds(deployment: Deployment) -> int:
    """Return the fewest copies that the scaling policy allows now; 1 without a policy."""
    policy = policy_of(deployment)
    return 1 if policy is None else policy.bounds(timezone.now())[0]


@transaction.atomic
def consolidation_execute(*, deployment: Deployment, minutes: int) -> tuple[Plan, list[Traffic]]:
    """Remove the plan's spare copies from the routes and stop them after their last requests.

    A scaling policy may add copies again when traffic grows.

    Raises:
        InvalidInputError: as by `consolidation_plan`, or the target is not of kind local.
        ConflictError: no copy is spare, or the deployment is being removed.
    """
    if deployment.target.kind != Target.Kind.LOCAL:
        text = "consolidation is supported only in targets of kind local"
        raise InvalidInputError(text, field="target")
    # Lock the deployment before its scaling row: all writers of both use this order.
    deployment = deployment_locked(deployment)
    made, traffic = consolidation_plan(deployment=deployment, minutes=minutes)
    if not made.saved:
        raise ConflictError(
            f"all {len(made.keep)} copies of {deployment.name} are needed, or required by its minimum"
        )
    count = len(made.keep)
    scaling = Scaling.objects.select_for_update().filter(deployment=deployment, policy__isnull=False).first()
    if scaling is None:
        deployment_update(deployment=deployment, min_copies=count)
    else:
        scaling.copies, scaling.state = count, {}
        scaling.save()
        Deployment.objects.filter(pk=deployment.pk).update(next_at=timezone.now())
        enqueue(RECONCILE_TASK, deployment_id=deployment.pk)
    scale_ups_overtake(deployment=deployment, at=timezone.now())
    load = sum(item.concurrency for item in traffic)
    cause = f"{made.saved} copies are not needed for {load:.1f} concurrent requests"
    step_add(deployment, "consolidate", f"{count + made.saved} -> {count}", cause)
    audit_record(
        tenant="",
        action="deployment.consolidate",
        target=deployment,
        before={"copies": count + made.saved},
        after={"copies": count},
    )
    return made, traffic
