"""Scores, reranks and classifications through a gateway process, in front of servers with vLLM's forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyScope
from contracts.limits import Limit, LimitsRoute
from contracts.route_table import RouteTable
from gateway.api.scoring import TEMPLATE_TOKENS
from tests.gateway.conftest import ACME, UMBRELLA, ControlPlane, GatewayProcess, route_table
from tests.gateway.routing.standin import ServerThread
from tests.gateway.scoring.vllm_pooling import SEPARATORS, PoolingServer

DOCUMENTS = ["xyz", "cat", "at"]
RERANK: dict[str, Any] = {"model": "base", "query": "a cat", "documents": DOCUMENTS}
SCORE: dict[str, Any] = {"model": "base", "text_1": "a cat", "text_2": DOCUMENTS}
CLASSIFY: dict[str, Any] = {"model": "base", "input": ["tiny", "a longer text"]}
TOKENS = sum(len("a cat") + len(document) + SEPARATORS for document in DOCUMENTS)


@pytest.fixture(scope="module")
def thread() -> Iterator[ServerThread]:
    thread = ServerThread()
    yield thread
    thread.close()


@pytest.fixture
def servers(thread: ServerThread) -> Iterator[list[PoolingServer]]:
    servers = [PoolingServer(thread), PoolingServer(thread)]
    yield servers
    for server in servers:
        server.close()


def table(*servers: PoolingServer, kind: str = "openai_http", copies: str = "copy") -> RouteTable:
    """`route_table` with copies that load adapters and a context of 64 tokens."""
    urls = [server.url for server in servers]
    routes = tuple(
        CopyRoute(f"{copies}-{number}-{url[-5:]}", kind, url, loads_adapters=True)
        for number, url in enumerate(urls)
    )
    return replace(route_table(*urls), bases={"base": BaseRoute("base", 64, routes)})


def post(gateway: GatewayProcess, path: str, key: str = ACME, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **body.pop("headers", {})}
    return httpx.post(gateway.url + path, json=body, headers=headers, timeout=30)


@pytest.fixture
def scored(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> GatewayProcess:
    control_plane.replace(pooled_gateway, table(servers[0]))
    return pooled_gateway


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_rerank_is_vllms_and_billed_by_its_count(
    path: str, scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    answer = post(scored, path, **RERANK, top_n=2)
    assert answer.status_code == 200, answer.text
    value = answer.json()
    assert [(item["index"], item["relevance_score"]) for item in value["results"]] == [(1, 1.0), (2, 1.0)]
    assert value["results"][0]["document"]["text"] == "cat"
    assert value["model"] == "base"
    assert value["usage"] == {"prompt_tokens": TOKENS, "total_tokens": TOKENS}
    assert answer.headers["x-graftwork-served-model"] == "base"
    (event,) = control_plane.wait_events(1)
    assert (event.prompt_tokens, event.completion_tokens, event.estimated) == (TOKENS, 0, False)
    assert (event.status, event.tenant, event.base_model) == ("ok", "acme", "base")
    ((path, body),) = servers[0].calls
    assert (path, body["cache_salt"], body["documents"]) == ("/v1/rerank", "aa11", DOCUMENTS)


def test_documents_are_left_out_of_the_answer_where_they_are_not_wanted(scored: GatewayProcess) -> None:
    results = post(scored, "/v1/rerank", **RERANK, return_documents=False).json()["results"]
    assert all(set(item) == {"index", "relevance_score"} for item in results)


def test_scores_and_classes(
    scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    scores = post(scored, "/v1/score", **SCORE).json()
    assert [item["score"] for item in scores["data"]] == [0.0, 1.0, 1.0]
    assert scores["usage"]["prompt_tokens"] == TOKENS
    classes = post(scored, "/classify", **CLASSIFY).json()
    assert [item["label"] for item in classes["data"]] == ["short", "long"]
    assert sorted(event.prompt_tokens for event in control_plane.wait_events(2)) == sorted(
        [TOKENS, sum(len(text) + SEPARATORS for text in CLASSIFY["input"])]
    )
    assert [path for path, _ in servers[0].calls] == ["/v1/score", "/classify"]


def test_an_adapter_answers_for_its_own_tenant_alone(
    scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    value = post(scored, "/v1/rerank", **{**RERANK, "model": "bot"}).json()
    # vLLM names the base model in its answer.
    assert value["model"] == "bot"
    engine_name = servers[0].calls[-1][1]["model"]
    assert engine_name.startswith("t_acme.a_bot.v1.")
    (event,) = control_plane.wait_events(1)
    assert (event.adapter, event.requested_model, event.prompt_tokens) == (engine_name, "bot", TOKENS)
    sent = len(servers[0].calls)
    for path, body in (("/v1/rerank", RERANK), ("/v1/score", SCORE), ("/v1/classify", CLASSIFY)):
        answer = post(scored, path, UMBRELLA, **{**body, "model": "bot"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(servers[0].calls) == sent
    post(scored, "/v1/score", UMBRELLA, **SCORE)
    assert servers[0].calls[-1][1]["cache_salt"] == "bb22"


def test_a_key_is_held_to_its_endpoints_by_every_path_of_them(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    routes = table(servers[0])
    key = replace(routes.keys["k1"], scope=KeyScope(endpoints=("rerank",)))
    control_plane.replace(pooled_gateway, replace(routes, keys={**routes.keys, "k1": key}))
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        assert post(pooled_gateway, path, **RERANK).status_code == 200
    for path in ("/v1/score", "/score"):
        answer = post(pooled_gateway, path, **SCORE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


def test_the_bound_is_reserved_and_settled_to_the_count(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    limits = {"tenant:acme": LimitsRoute((Limit("tokens", 1000),))}
    control_plane.replace(pooled_gateway, replace(table(servers[0]), limits=limits))
    refused = post(pooled_gateway, "/v1/rerank", **{**RERANK, "documents": ["x" * 64] * 16})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert servers[0].calls == []
    # A reservation of 3 * 24 bytes of texts and special tokens is settled to 31 tokens.
    for _ in range(8):
        assert post(pooled_gateway, "/v1/rerank", **RERANK).status_code == 200


def test_a_measured_template_is_reserved_instead_of_the_largest(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    routes = table(servers[0])
    bases = {"base": replace(routes.bases["base"], max_model_len=4096)}
    limits = {"tenant:acme": LimitsRoute((Limit("tokens", 1000),))}
    control_plane.replace(pooled_gateway, replace(routes, bases=bases, limits=limits))
    assert post(pooled_gateway, "/v1/rerank", **RERANK).status_code == 200
    # By TEMPLATE_TOKENS, 9 pairs would reserve more than the limit.
    assert 9 * TEMPLATE_TOKENS > 1000
    assert post(pooled_gateway, "/v1/rerank", **{**RERANK, "documents": DOCUMENTS * 3}).status_code == 200
    assert [event.prompt_tokens for event in control_plane.wait_events(2)] == [TOKENS, 3 * TOKENS]


def test_the_backends_refusal_is_openais_and_unbilled(
    scored: GatewayProcess, control_plane: ControlPlane
) -> None:
    answer = post(scored, "/v1/rerank", **{**RERANK, "documents": ["x" * 80]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    (event,) = control_plane.wait_events(1)
    assert (event.status, event.prompt_tokens) == ("client_error", 0)


def test_a_damaged_answer_is_no_answer(
    scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    servers[0].behaviour = "broken"
    answer = post(scored, "/v1/score", **SCORE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")


def test_an_answer_without_usage_is_billed_by_estimate(
    scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    servers[0].behaviour = "silent"
    assert post(scored, "/v1/rerank", **RERANK).status_code == 200
    (event,) = control_plane.wait_events(1)
    assert event.estimated
    estimate = sum((len("a cat") + len(document)) // 4 + 1 for document in DOCUMENTS)
    assert (event.prompt_tokens, event.completion_tokens) == (estimate, 0)


@pytest.mark.parametrize("kind", ["worker", "sagemaker"])
def test_copies_that_lack_the_endpoint_are_named_with_what_would_serve_it(
    kind: str, pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    control_plane.replace(pooled_gateway, table(servers[0], kind=kind))
    for path, body in (("/v1/rerank", RERANK), ("/v1/score", SCORE), ("/v1/classify", CLASSIFY)):
        error = post(pooled_gateway, path, **body).json()["error"]
        assert (error["code"], error["param"]) == ("endpoint_not_served", "model")
        assert path in error["message"]
        assert "vllm serve --runner pooling" in error["message"]
    assert servers[0].calls == []


@pytest.mark.parametrize("behaviour", ["generates", "older"])
def test_a_server_without_the_endpoint_is_passed_over_and_not_asked_again(
    behaviour: str, pooled_gateway: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    lacking, able = servers
    lacking.behaviour = behaviour
    control_plane.replace(pooled_gateway, table(lacking, able, copies=behaviour))
    assert all(post(pooled_gateway, "/v1/rerank", **RERANK).status_code == 200 for _ in range(6))
    assert len(lacking.calls) <= 1
    assert len(able.calls) == 6
    control_plane.replace(pooled_gateway, table(lacking, copies=f"{behaviour}-alone"))
    error = post(pooled_gateway, "/v1/rerank", **RERANK).json()["error"]
    assert error["code"] == "endpoint_not_served"


def test_a_repetition_is_answered_from_the_store_under_any_path(
    scored: GatewayProcess, control_plane: ControlPlane, servers: list[PoolingServer]
) -> None:
    headers = {"idempotency-key": "one"}
    first = post(scored, "/v1/rerank", **RERANK, headers=headers)
    again = post(scored, "/rerank", **RERANK, headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content == first.content
    assert len(servers[0].calls) == 1
    control_plane.wait_events(1)
