"""Copies with a merged adapter: first for their adapter, never for anything else, and replaceable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from contracts.base_routes import BaseRoute, CopyRoute, SageMakerTarget
from contracts.route_table import RouteTable
from gateway.routing import resolve
from tests.gateway.conftest import ACME, UMBRELLA, ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.test_app import ask, post

__all__ = ["server_thread", "stand_ins"]
BOT = reference("acme", "bot", 1)


def table_with(shared: str, merged: str, number: str) -> RouteTable:
    """A copy for everything, and one into which version 1 of acme's bot is merged."""
    copies = (
        CopyRoute(f"shared-{number}", "worker", shared),
        CopyRoute(f"merged-{number}", "worker", merged, merged=BOT.name),
    )
    return replace(route_table(), bases={"base": BaseRoute("base", 2048, copies)})


def test_a_merged_copy_survives_the_wire() -> None:
    table = table_with("http://a", "http://b", "1")
    assert RouteTable.from_snapshot(table.snapshot()).bases == table.bases


@pytest.mark.parametrize(
    ("tenant", "model", "copies"),
    [
        ("acme", "base", {"shared-1"}),
        ("acme", "bot", {"merged-1", "shared-1"}),
        ("acme", "bot@v1", {"merged-1", "shared-1"}),
        ("acme", "bot@prod", {"shared-1"}),
        ("umbrella", "hive", {"shared-1"}),
        ("umbrella", "base", {"shared-1"}),
    ],
)
def test_only_the_merged_version_may_use_the_copy(tenant: str, model: str, copies: set[str]) -> None:
    found = resolve(table_with("http://a", "http://b", "1"), tenant, model)
    assert {copy.id for copy in found.copies} == copies
    assert [copy.id for copy in found.merged_copies] == (["merged-1"] if "merged-1" in copies else [])


def test_a_base_with_merged_copies_alone_has_no_copy_for_others() -> None:
    table = table_with("http://a", "http://b", "1")
    base = replace(table.bases["base"], copies=table.bases["base"].copies[1:])
    alone = replace(table, bases={"base": base})
    assert resolve(alone, "umbrella", "hive").copies == ()
    assert resolve(alone, "acme", "bot").copies == base.copies


def test_a_copy_without_the_adapter_is_no_copy_for_it() -> None:
    """So that such requests wait for another copy, or wake it, instead of being refused here."""
    loaded = SageMakerTarget("eu", "endpoint", "base", "name", container="tgi", loaded=(BOT.name,))
    copies = (
        CopyRoute("has", "sagemaker", "", sagemaker=loaded),
        CopyRoute("lacks", "sagemaker", "", sagemaker=replace(loaded, loaded=())),
        CopyRoute("any", "sagemaker", "", sagemaker=replace(loaded, container="lmi", loaded=None)),
        CopyRoute("merged", "sagemaker", "", sagemaker=replace(loaded, loaded=()), merged=BOT.name),
    )
    base = BaseRoute("base", 2048, copies)
    assert [copy.id for copy in base.copies_for(BOT)] == ["has", "any", "merged"]
    assert [copy.id for copy in base.copies_for(None)] == ["has", "lacks", "any"]


@pytest.mark.costly("requests over two copies, one of which fails")
def test_requests_go_to_the_merged_copy_first_and_are_the_adapters(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    shared, merged = stand_ins(2)
    number = str(id(shared))
    control_plane.replace(pooled_gateway, table_with(shared.url, merged.url, number))

    def call(model: str, bearer: str = ACME) -> str:
        answer = post(pooled_gateway, {"model": model, "messages": ask(tokens=3)}, bearer)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return str(answer.headers["x-request-id"])

    for _ in range(6):
        call("bot")
        call("base")
        call("bot@v2")
        call("hive", UMBRELLA)
    assert (merged.calls(), shared.calls()) == (6, 18)
    merged.behave(status=503, retry_after="1", code="unavailable")
    last = call("bot")
    events = control_plane.wait_events(24 + 2)
    of_bot = [event for event in events if event.adapter == BOT.name]
    assert {event.endpoint for event in of_bot[:6]} == {f"merged-{number}"}
    assert {event.tenant for event in of_bot} == {"acme"}
    assert [
        (event.attempt, event.status, event.endpoint) for event in events if event.request_id == last
    ] == [(1, "error", f"merged-{number}"), (2, "ok", f"shared-{number}")]
