"""Images through a gateway process: they go to copies that read them, and are counted and logged."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.demand import demand_key
from contracts.image_tokens import NO_IMAGES, ImageTokens
from contracts.limits import Limit, LimitsRoute
from contracts.route_table import AdapterRoute, RouteTable
from gateway.errors import ImagesNotServed
from gateway.usage.prompt_log import without_images
from tests.gateway.api.pictures import data_url, image_part, png
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

__all__ = ["server_thread", "stand_ins"]
PICTURE = data_url(png(1024, 1024))
VLLM = CopyRoute("v", "openai_http", "", engine="vLLM 0.32.0", images=True)
WORKER = CopyRoute("w", "openai_http", "", engine="the bundled worker", images=False)
QWEN = ImageTokens(16_384, 28, extra=2)


def table_of(*copies: CopyRoute, rule: ImageTokens | None = QWEN, **route: Any) -> RouteTable:
    base = BaseRoute(
        "base", 8192, copies, architecture="Qwen2_5_VLForConditionalGeneration", image_tokens=rule, **route
    )
    bot = AdapterRoute("base", 1, {1: reference("acme", "bot")}, fallbacks={"": ("other",)})
    other = BaseRoute("other", 8192, tuple(replace(copy, id=f"{copy.id}-o") for copy in copies[:1]))
    return replace(route_table(), bases={"base": base, "other": other}, adapters={"acme": {"bot": bot}})


def chat_with_images(model: str = "base", images: int = 1, **fields: Any) -> dict[str, Any]:
    """A chat with images, whose answer the last message controls."""
    first = {"role": "user", "content": [{"type": "text", "text": "?"}, *[image_part(PICTURE)] * images]}
    return {"model": model, "messages": [first, *ask(tokens=2)], **fields}


def test_the_rule_survives_the_wire() -> None:
    for rule in (None, QWEN, NO_IMAGES):
        table = table_of(VLLM, WORKER, replace(VLLM, images=None), rule=rule)
        assert RouteTable.from_snapshot(table.snapshot()) == table


@pytest.mark.costly("requests to a gateway process")
def test_images_go_to_the_copy_that_reads_them_and_are_counted(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    able, other = stand_ins(2)
    copies = (
        replace(VLLM, id=f"v-{id(able)}", url=able.url),
        replace(WORKER, id=f"w-{id(other)}", url=other.url),
    )
    control_plane.replace(pooled_gateway, table_of(*copies))
    for number in range(4):
        assert post(pooled_gateway, chat_with_images(images=2, stream=bool(number % 2))).status_code == 200
    part = {"type": "input_image", "image_url": PICTURE}
    response = {"model": "base", "input": [{"role": "user", "content": [part]}, *ask(tokens=2)]}
    assert post(pooled_gateway, response, path="responses").status_code == 200
    assert (able.calls(), other.calls()) == (5, 0)
    sent = httpx.get(able.url + "/log").json()[0]
    assert sent["body"]["messages"][0]["content"][1:] == [image_part(PICTURE)] * 2
    events = control_plane.wait_events(5)
    assert [event.images for event in events] == [2, 2, 2, 2, 1]
    assert {(event.operation, event.prompt_tokens, event.estimated) for event in events} == {
        ("chat", 11, False)
    }


@pytest.mark.costly("requests to a gateway process")
def test_the_reservation_covers_the_images(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    [able] = stand_ins(1)
    table = table_of(replace(VLLM, id=f"v-{id(able)}", url=able.url))
    # An image of 1,024 by 1,024 takes at most 37 x 37 + 2 tokens, and the text and the answer some.
    limits = {"tenant:acme": LimitsRoute((Limit("tokens", 1500, 3600),))}
    control_plane.replace(pooled_gateway, replace(table, limits=limits))
    refused = post(pooled_gateway, chat_with_images(images=2, max_tokens=8))
    assert (refused.status_code, "requested 27" in refused.json()["error"]["message"]) == (429, True)
    # What a request reserved and did not use returns at once, or with the gateway's next exchange with Redis
    # if its slice of the window has ended. Unsettled, it would count for an hour.
    for _ in range(3):
        eventually(lambda: post(pooled_gateway, chat_with_images(max_tokens=8)).status_code == 200)


@pytest.mark.costly("requests to a gateway process")
def test_without_a_copy_that_reads_them_the_answer_says_so(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    [other] = stand_ins(1)
    copy = replace(WORKER, id=f"w-{id(other)}", url=other.url)

    def refusal(table: RouteTable, path: str = "chat/completions", **fields: Any) -> dict[str, Any]:
        control_plane.replace(pooled_gateway, table)
        answer = post(pooled_gateway, chat_with_images() | fields, path=path)
        assert answer.status_code == 400
        error: dict[str, Any] = answer.json()["error"]
        assert error["code"] == ImagesNotServed.code
        return error

    error = refusal(table_of(copy, hold_seconds=30))
    assert error["message"] == (
        "No copy of 'base' reads images: the bundled worker reads text alone. What would serve it: vLLM from "
        "0.8.5 on. Send no images, or ask your operator for a copy that reads them."
    )
    assert error["param"] == "messages"
    error = refusal(table_of(replace(copy, images=None), rule=NO_IMAGES))
    assert error["message"] == (
        "The base model 'base' has no vision part, so it reads text alone. Send no images, or call a "
        "vision-language model."
    )
    asleep = (replace(WORKER, id="asleep"),)
    assert "reads text alone" in refusal(table_of(hold_seconds=30, absent=asleep))["message"]
    few = replace(copy, images=True, max_images=2)
    error = refusal(table_of(few), messages=chat_with_images(images=3)["messages"])
    assert error["message"] == (
        "The copies of 'base' read at most 2 images of one request, it has 3. Send fewer, or ask your "
        "operator for a higher limit."
    )
    part = {"type": "input_image", "image_url": PICTURE}
    control_plane.replace(pooled_gateway, table_of(copy))
    body = {"model": "base", "input": [{"role": "user", "content": [part]}]}
    assert post(pooled_gateway, body, path="responses").json()["error"]["param"] == "input"
    assert other.calls() == 0
    assert post(pooled_gateway, chat_with_images() | {"messages": ask(tokens=1)}).status_code == 200


@pytest.mark.costly("requests to a gateway process")
def test_images_go_to_the_copy_that_was_started_for_so_many(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    few, many = stand_ins(2)
    copies = (
        replace(VLLM, id=f"f-{id(few)}", url=few.url, max_images=1),
        replace(VLLM, id=f"m-{id(many)}", url=many.url, max_images=3),
    )
    control_plane.replace(pooled_gateway, table_of(*copies))
    for _ in range(4):
        assert post(pooled_gateway, chat_with_images(images=3)).status_code == 200
    assert (few.calls(), many.calls()) == (0, 4)


@pytest.mark.costly("requests to a gateway process")
def test_a_fallback_that_reads_images_answers_at_once(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    able, other = stand_ins(2)
    table = table_of(replace(WORKER, id=f"w-{id(other)}", url=other.url), hold_seconds=30)
    reading = BaseRoute("other", 8192, (replace(VLLM, id=f"v-{id(able)}", url=able.url),))
    control_plane.replace(pooled_gateway, replace(table, bases={**table.bases, "other": reading}))
    answer = post(pooled_gateway, chat_with_images("bot"))
    assert answer.headers["x-graftwork-served-model"] == "other"
    assert (able.calls(), other.calls()) == (1, 0)


@pytest.mark.costly("requests to a gateway process")
@pytest.mark.parametrize("is_fallback", [False, True])
def test_a_copy_that_reads_images_is_waited_for_beside_one_that_does_not(
    pooled_gateway: GatewayProcess,
    control_plane: ControlPlane,
    stand_ins: Callable[[int], list[StandIn]],
    is_fallback: bool,
) -> None:
    """The model's own copy, or that of a fallback, is asleep; requests with text alone go on meanwhile."""
    able, other = stand_ins(2)
    copy = replace(WORKER, id=f"w-{id(other)}", url=other.url)
    asleep, awake = replace(VLLM, id="asleep"), replace(VLLM, id=f"v-{id(able)}", url=able.url)
    table = table_of(copy, hold_seconds=0 if is_fallback else 30, absent=() if is_fallback else (asleep,))
    reading = BaseRoute("other", 8192, hold_seconds=30, absent=(asleep,))
    table = replace(table, bases={**table.bases, "other": reading}) if is_fallback else table
    version = control_plane.replace(pooled_gateway, table)
    name = "other" if is_fallback else "base"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, pooled_gateway, chat_with_images("bot" if is_fallback else "base"))
        eventually(lambda: control_plane.client.hgetall(demand_key(name)))
        assert post(pooled_gateway, {"model": "base", "messages": ask(tokens=1)}).status_code == 200
        assert not asked.done()
        route = table.bases[name]
        control_plane.change(version + 1, f"bases/{name}", replace(route, copies=(*route.copies, awake)))
        assert asked.result(60).status_code == 200
    assert (able.calls(), other.calls()) == (1, 1)


@pytest.mark.parametrize("form", ["png", "PNG"])
def test_a_logged_prompt_has_the_images_size_alone(form: str) -> None:
    for slash in ("/", "\\/"):
        head, data = f"data:image{slash}{form};base64,", ("A" * 99 + slash) * 10
        kept = without_images(f'{{"url": "{head}{data}", "text": "data:x"}}'.encode())
        assert kept == f'{{"url": "{head}<{len(data)} characters>", "text": "data:x"}}'.encode()
    for body in (b'{"text": "hi"}', b'{"text": "data:image/png;base64,AAAA"}'):
        assert without_images(body) == body
