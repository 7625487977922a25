"""Where an adapter version can be served: by which engines and copies, and why not by the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.capabilities.capability import BaseNeeds, known_traits
from contracts.capabilities.engines import adapter_offers, newest_engines
from contracts.capabilities.traits import AdapterNeeds
from controlplane.catalog.models import BaseModel
from controlplane.deployments.capabilities import NOT_YET, base_needs
from controlplane.routes.selectors import route_base

Answer = Literal["yes", "no", "unknown"]
_TRIED: Final = "its engine is not known: the adapter is tried there"


@dataclass(frozen=True, slots=True)
class ServingOption:
    """One engine or copy, with its ability to serve an adapter version.

    Attributes:
        kind: `engine`; `copy`; or `deployment`, which has no copy at this moment.
        name: of the engine, or the copy's id; a deployment has its engine's name.
        serves: `unknown` copies get the adapter's requests, too.
        reason: why not, or why that is unknown; "" for yes.
    """

    kind: Literal["engine", "copy", "deployment"]
    name: str
    serves: Answer
    reason: str = ""


def serving_options(*, base_model: BaseModel, ref: AdapterRef) -> list[ServingOption]:
    """List the engines, then the copies and deployments of the base model, with the reason of each no.

    Copies with another adapter merged in are left out: they are another tenant's, or another version's.
    """
    base, needs = base_needs(base_model), _needs(ref)
    found = []
    for engine in newest_engines():
        problem = _TRIED if needs is None else engine.adapter_problem(base, needs)
        answer: Answer = "unknown" if needs is None else "no" if problem else "yes"
        found.append(ServingOption("engine", engine.engine, answer, problem))
    route = route_base(base_model=base_model.name) or BaseRoute("", 0)
    found += [_option("copy", copy.id, copy, ref) for copy in route.copies if copy.merged in ("", ref.name)]
    absent = [copy for copy in route.absent if copy.merged in ("", ref.name)]
    return found + [_option("deployment", copy.engine or "?", copy, ref) for copy in absent]


def serving_problem(*, base_model: BaseModel, ref: AdapterRef) -> str:
    """Return why nothing can serve the version now, and what would; "" if something can.

    A base model without copies and deployments is no problem while there is an engine that could serve it.
    """
    base, needs = base_needs(base_model), _needs(ref)
    offers = [] if needs is None else adapter_offers(base, needs)
    route = route_base(base_model=base_model.name) or BaseRoute("", 0)
    if route.excludes(ref):
        shared = [copy for copy in (*route.copies, *route.absent) if not copy.merged]
        reasons = {f"{copy.engine or 'a copy'} does not serve {copy.lacks(ref)}": None for copy in shared}
        remedy = f"; engines that do: {', '.join(offers)}" if offers else ""
        return f"{NOT_YET}: {'; '.join(reasons)}{remedy}"
    if offers or needs is None or route.copies or route.absent:
        return ""
    return f"{NOT_YET}: {engine_problems(base, needs)}"


def engine_problems(base: BaseNeeds, needs: AdapterNeeds) -> str:
    """Return why each engine cannot serve an adapter."""
    problems = (engine.adapter_problem(base, needs) for engine in newest_engines())
    return "; ".join(problem for problem in problems if problem)


def _option(
    kind: Literal["copy", "deployment"], name: str, copy: CopyRoute, ref: AdapterRef
) -> ServingOption:
    if copy.merged:
        return ServingOption(kind, name, "yes")
    if lacks := copy.lacks(ref):
        return ServingOption(kind, name, "no", f"{copy.engine or 'the copy'} does not serve {lacks}")
    return (
        ServingOption(kind, name, "yes")
        if copy.traits is not None
        else ServingOption(kind, name, "unknown", _TRIED)
    )


def _needs(ref: AdapterRef) -> AdapterNeeds | None:
    """Return the needs of a version; None if a newer release wrote a trait that is not known here."""
    traits = known_traits(ref.traits)
    return None if traits is None else AdapterNeeds(max(1, ref.rank), traits)
