"""Queries for adapters' placement rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from django.db.models import QuerySet

from contracts.adapters.reference import AdapterRef
from contracts.errors import ContractError
from controlplane.deployments.models import AdapterRule, Deployment, Placement, Target
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.routes.selectors import route_refs

MOST_RULES: Final = 1000
"""Limit per deployment: gateways carry all rules in one entry of the route table."""


def rule_list(*, deployment: Deployment, engine_name: str = "") -> QuerySet[AdapterRule]:
    """Return a deployment's rules, or one adapter's, by engine name; rules that are being undone too."""
    rules = AdapterRule.objects.filter(deployment=deployment).order_by("engine_name")
    return rules.filter(engine_name=engine_name) if engine_name else rules


def pinned_copies(*, engine_names: Collection[str], base_models: Collection[int]) -> dict[str, int]:
    """Count by engine name the copies that keep an adapter in memory, or whose own deployment serves it.

    Two queries; adapters without such a copy are left out.
    """
    where = {"engine_name__in": engine_names, "deployment__base_model__in": base_models}
    found: dict[str, int] = defaultdict(int)
    for name, ready in AdapterRule.objects.filter(**where).values_list("engine_name", "ready"):
        found[name] += len(ready)
    placed = Placement.objects.filter(**where, status=Placement.Status.READY)
    for name in placed.values_list("engine_name", flat=True):
        found[name] += 1
    return {name: copies for name, copies in found.items() if copies}


def rule_get(*, deployment: Deployment, engine_name: str) -> AdapterRule:
    """Return an adapter's rule.

    Raises:
        NotFoundError: it has no rule, or the rule is being undone.
    """
    rule = rule_list(deployment=deployment).filter(engine_name=engine_name).first()
    if rule is None or rule.is_over:
        raise NotFoundError(f"adapter {engine_name!r} has no placement rule on {deployment.name}")
    return rule


def placed_ref(*, deployment: Deployment, engine_name: str) -> AdapterRef:
    """Return the adapter's reference in the routes. Raises NotFoundError."""
    base_model = deployment.base_model.name
    try:
        found = route_refs(base_model=base_model, names=[engine_name])
    except ContractError as error:
        raise NotFoundError(str(error)) from error
    if engine_name not in found:
        raise NotFoundError(
            f"no route leads to {engine_name} on {base_model}: use the engine name of a ready version"
        )
    return found[engine_name]


def demand_placeable(deployment: Deployment) -> None:
    """Raise InvalidInputError if operators cannot place adapters on the deployment's copies."""
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        raise InvalidInputError(
            "SageMaker keeps each adapter's component on every copy of the base: components come and go with "
            "the routes, see adapter_scope",
            field="target",
        )
    if deployment.hosting != Deployment.Hosting.ON_DEMAND:
        raise InvalidInputError(
            f"with hosting {deployment.hosting} every server has all routed adapters", field="hosting"
        )
