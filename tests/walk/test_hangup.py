"""A client that hangs up mid-stream pays for what the gateway received, and the worker stops at once."""

from __future__ import annotations

import time

import pytest

from tests.waiting import eventually
from tests.walk.product import Product
from tests.walk.test_walk import QUESTION

pytestmark = [
    pytest.mark.costly("the whole product"),
    pytest.mark.walk,
    pytest.mark.model,
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("chunks_read", [1, 12])
def test_hangup_stops_generation_and_bills_what_was_received(product: Product, chunks_read: int) -> None:
    if not product.worker:
        pytest.skip("the worker of this running product is not reachable from here")
    tenant = product.tenants[0]
    before, cancelled_before = product.tokens(tenant), _cancelled(product)
    generated_before = product.worker_metric("graftwork_worker_generated_tokens_total")
    client_seen = 0
    with product.openai(tenant) as client:
        stream = client.chat.completions.create(
            model=tenant.adapters[0],
            messages=QUESTION,
            stream=True,
            max_tokens=1500,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            client_seen += any(choice.delta.content for choice in chunk.choices)
            if client_seen >= chunks_read:
                break
        assert product.worker_metric("graftwork_worker_requests_running") == 1
        stream.close()
    eventually(
        lambda: product.worker_metric("graftwork_worker_requests_running") == 0,
        message="the generation ends with the connection",
    )
    generated = product.worker_metric("graftwork_worker_generated_tokens_total") - generated_before
    time.sleep(0.5)  # Long enough for a generation that goes on to add tokens: a step takes about 25 ms.
    later = product.worker_metric("graftwork_worker_generated_tokens_total") - generated_before
    assert later == generated, "tokens were generated after the hang-up"
    billed = product.tokens_after(tenant, before, 1)
    assert billed.requests == 1
    assert client_seen <= billed.completion <= generated < 1500
    assert _cancelled(product) - cancelled_before == billed.completion


def _cancelled(product: Product) -> int:
    """Completion tokens that the first tenant's report counts as cancelled."""
    rows = product.report(product.tenants[0], "status")["rows"]
    return sum(row["completion_tokens"] for row in rows if row["group"]["status"] == "cancelled")
