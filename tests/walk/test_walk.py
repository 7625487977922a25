"""The main job, end to end: register an adapter, stream from it, find the exact tokens and price."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx
import openai
import pytest

from contracts.adapters.reference import ADAPTER_FILES
from demo.credentials import OPERATOR
from demo.effects import ADAPTERS
from tests.waiting import eventually
from tests.walk.product import Product, TenantAccess, Tokens, logged_in

pytestmark = [
    pytest.mark.costly("the whole product"),
    pytest.mark.walk,
    pytest.mark.model,
    pytest.mark.timeout(600),
]

QUESTION: Any = [{"role": "user", "content": "How do I keep my houseplants alive while I travel?"}]


def chat(product: Product, tenant: TenantAccess, model: str, **options: Any) -> tuple[str, Tokens]:
    """Text and usage of a chat, streamed when `stream` is set."""
    options = {"max_tokens": 24, "temperature": 0, **options}
    with product.openai(tenant) as client:
        if not options.pop("stream", False):
            answer = client.chat.completions.create(model=model, messages=QUESTION, **options)
            assert answer.model == model
            assert answer.usage is not None
            usage, text = answer.usage, answer.choices[0].message.content or ""
        else:
            stream = client.chat.completions.create(
                model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **options
            )
            parts, last = [], None
            for chunk in stream:
                parts += [choice.delta.content or "" for choice in chunk.choices]
                last = chunk.usage or last
            assert last is not None
            usage, text = last, "".join(parts)
    return text, Tokens(1, usage.prompt_tokens, usage.completion_tokens)


def upload(rest: httpx.Client, name: str, base_model: str, **content: bytes) -> dict[str, Any]:
    """Registers the pirate adapter's files as `name`, some replaced, and waits for the verdict."""
    files = []
    for file in ADAPTER_FILES:
        data = content.get(file.partition(".")[0], (ADAPTERS / "pirate" / file).read_bytes())
        files.append(("files", (file, data)))
    response = rest.post("/adapters", data={"name": name, "base_model": base_model}, files=files)
    assert response.status_code == 201, response.text

    def decided() -> dict[str, Any] | None:
        latest: dict[str, Any] = rest.get(f"/adapters/{name}").json()["versions"][0]
        return latest if latest["status"] in ("ready", "refused") else None

    return eventually(decided, message=f"adapter {name} is ready or refused") or {}


def test_usage_in_the_report_is_what_the_client_saw(product: Product) -> None:
    for tenant in product.tenants:
        before, seen = product.tokens(tenant), Tokens(0, 0, 0)
        for model in (tenant.base_model, *tenant.adapters[:2], f"{tenant.adapters[0]}@v1"):
            texts = []
            # The first fills the prefix cache: bf16 may round otherwise when a prompt is computed whole.
            for stream in (True, False, True):
                text, usage = chat(product, tenant, model, stream=stream)
                assert text.strip()
                texts.append(text)
                seen = Tokens(
                    seen.requests + 1, seen.prompt + usage.prompt, seen.completion + usage.completion
                )
            assert texts[1] == texts[2], "greedy output is the same streamed and not"
        assert product.tokens_after(tenant, before, seen.requests) == seen


def test_adapters_differ_from_the_base_and_from_each_other(product: Product) -> None:
    tenant = product.tenants[0]
    texts = {model: chat(product, tenant, model)[0] for model in (tenant.base_model, *tenant.adapters)}
    assert len(set(texts.values())) == len(texts), texts


def test_report_by_adapter_states_price_and_agrees_with_csv(product: Product) -> None:
    tenant = product.tenants[0]
    chat(product, tenant, tenant.adapters[0])
    report, lines = eventually(lambda: _report_and_csv(product, tenant), message="two equal reports")
    rows = {row["group"]["adapter"]: row for row in report["rows"]}
    assert all(row["unpriced"] is False for row in report["rows"])
    assert sum(Decimal(row["price"]) for row in report["rows"]) == Decimal(report["total"]["price"]) > 0
    assert {line["adapter"]: line["completion_tokens"] for line in lines} == {
        name: str(row["completion_tokens"]) for name, row in rows.items()
    }


def _report_and_csv(product: Product, tenant: TenantAccess) -> tuple[Any, ...]:
    """The report by adapter and its CSV; empty if usage arrived in between, or the adapter's has not yet."""
    report = product.report(tenant, "adapter")
    with product.rest_client(tenant) as rest:
        days = {"start": report["start"], "end": report["end"]}
        response = rest.get("/usage", params={**days, "group_by": "adapter", "format": "csv"})
    assert response.headers["content-type"].startswith("text/csv")
    arrived = any(row["group"]["adapter"] == tenant.adapters[0] for row in report["rows"])
    if not arrived or product.report(tenant, "adapter") != report:
        return ()
    return report, list(csv.DictReader(io.StringIO(response.text)))


def test_a_registered_adapter_streams(product: Product) -> None:
    tenant, name = product.tenants[1], f"walk-{time.time_ns()}"
    with product.rest_client(tenant) as rest:
        latest = upload(rest, name, tenant.base_model)
        assert latest["status"] == "ready", latest
        base, _ = chat(product, tenant, tenant.base_model)
        text, usage = chat(product, tenant, name, stream=True)
        assert text.strip()
        assert text != base
        assert 0 < usage.completion <= 24
        assert rest.delete(f"/adapters/{name}").status_code == 204
    _eventually_raises(
        openai.NotFoundError, lambda: chat(product, tenant, name, max_tokens=1), "a deleted adapter is gone"
    )


def test_a_bad_adapter_is_refused_by_tensor_and_shape(product: Product) -> None:
    tenant, name = product.tenants[0], f"walk-bad-{time.time_ns()}"
    data = (ADAPTERS / "pirate" / "adapter_model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensor = next(key for key in header if key.endswith("lora_A.weight"))
    header[tensor]["shape"].reverse()
    text = json.dumps(header).encode()
    bad = struct.pack("<Q", len(text)) + text + data[8 + length :]
    with product.rest_client(tenant) as rest:
        latest = upload(rest, name, tenant.base_model, adapter_model=bad)
    assert latest["status"] == "refused"
    assert tensor in latest["reason"]
    assert str(list(reversed(header[tensor]["shape"]))) in latest["reason"].replace("(", "[").replace(
        ")", "]"
    )
    with pytest.raises(openai.NotFoundError):
        chat(product, tenant, name)


def test_a_bad_key_is_401_in_openais_form(product: Product) -> None:
    tenant = product.tenants[0]
    wrong = tenant.api_key[:-1] + ("0" if tenant.api_key[-1] != "0" else "1")
    for key in (wrong, "nonsense", "gw_0_0"):
        client = openai.OpenAI(base_url=product.gateway, api_key=key, max_retries=0)
        with client, pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=tenant.base_model, messages=QUESTION)
        assert caught.value.code == "invalid_api_key"
        assert set(caught.value.response.json()["error"]) == {"message", "type", "code", "param"}


def test_another_tenants_adapter_is_as_unknown_as_any(product: Product) -> None:
    first, second = product.tenants[:2]
    foreign = next(name for name in second.adapters if name not in first.adapters)
    errors = {}
    for model in (foreign, "no-such-model"):
        with pytest.raises(openai.NotFoundError) as caught:
            chat(product, first, model)
        assert caught.value.code == "model_not_found"
        errors[model] = caught.value.message.replace(model, "?")
    assert errors[foreign] == errors["no-such-model"]
    for name in (first.base_model, *first.adapters):
        assert name in errors["no-such-model"], "the message names what the key may call"


def test_a_prompt_too_long_is_400_with_both_lengths(product: Product) -> None:
    tenant = product.tenants[0]
    messages: Any = [{"role": "user", "content": "word " * 20_000}]
    with product.openai(tenant) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=tenant.adapters[0], messages=messages)
    assert caught.value.code == "context_length_exceeded"
    found = re.search(r"context length is (\d+) tokens.* resulted in (\d+) tokens", caught.value.message)
    assert found is not None, caught.value.message
    assert 1000 <= int(found[1]) < 20_000 <= int(found[2])


def test_models_lists_what_the_key_may_call(product: Product) -> None:
    for tenant in product.tenants:
        with product.openai(tenant) as client:
            names = {model.id for model in client.models.list()}
        assert {tenant.base_model, *tenant.adapters} <= names
        others = {name for other in product.tenants if other is not tenant for name in other.adapters}
        assert not names & (others - set(tenant.adapters))


def test_a_revoked_key_is_refused(product: Product) -> None:
    tenant = product.tenants[0]
    with product.rest_client(tenant) as rest:
        created = rest.post("/keys", json={"name": "short-lived", "scopes": ["inference"]}).json()
        other = TenantAccess(**{**_fields(tenant), "api_key": created["key"]})
        _eventually_accepted(product, other)
        assert rest.delete(f"/keys/{created['public_id']}").status_code in (200, 204)
    _eventually_raises(
        openai.AuthenticationError, lambda: _models(product, other), "a revoked key is refused"
    )


def test_a_suspended_tenant_is_refused_and_served_again(product: Product) -> None:
    if not product.operator_password:
        pytest.skip("needs the operator's login")
    tenant, other = product.tenants[:2]
    with logged_in(product, OPERATOR, product.operator_password) as staff:
        path = f"/api/v1/tenants/{tenant.name}/suspension"
        assert staff.post(path, json={"reason": "an invoice is overdue"}).status_code == 201
        try:
            refusal = _eventually_raises(
                openai.PermissionDeniedError, lambda: _models(product, tenant), "a suspended tenant is out"
            )
            assert refusal.code == "tenant_suspended"
            with product.openai(other) as client:
                assert client.models.list().data
        finally:
            assert staff.delete(path).status_code == 204
    _eventually_accepted(product, tenant)


def test_a_parameter_that_the_operator_drops_is_taken_and_ignored(product: Product) -> None:
    if not product.operator_password:
        pytest.skip("needs the operator's login")
    tenant = product.tenants[0]
    model, extra = tenant.adapters[0], {"extra_body": {"thinking": True}}
    with pytest.raises(openai.BadRequestError, match="thinking"):
        chat(product, tenant, model, **extra)
    with logged_in(product, OPERATOR, product.operator_password) as staff:
        path = f"/api/v1/base-models/{tenant.base_model}"
        assert staff.patch(path, json={"dropped_parameters": ["thinking"]}).status_code == 200
        try:
            eventually(lambda: chat(product, tenant, model, **extra), suppress=(openai.BadRequestError,))
        finally:
            assert staff.patch(path, json={"dropped_parameters": []}).status_code == 200


def _models(product: Product, tenant: TenantAccess) -> list[str]:
    with product.openai(tenant) as client:
        return [model.id for model in client.models.list()]


def _eventually_raises(
    error: type[openai.APIStatusError], call: Callable[[], object], message: str
) -> openai.APIStatusError:
    """The error that `call` comes to raise: gateways follow a change of the routes in a moment."""

    def raised() -> openai.APIStatusError | None:
        try:
            call()
        except error as refusal:
            return refusal
        return None

    refusal = eventually(raised, message=message)
    assert refusal is not None
    return refusal


def _eventually_accepted(product: Product, tenant: TenantAccess) -> None:
    refusals = (openai.AuthenticationError, openai.PermissionDeniedError)
    eventually(lambda: _models(product, tenant), suppress=refusals, message="the key is accepted")


def _fields(tenant: TenantAccess) -> dict[str, Any]:
    return {name: getattr(tenant, name) for name in TenantAccess.__dataclass_fields__}
