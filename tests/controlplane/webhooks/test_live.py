"""Real processes: a Celery worker delivers to a receiver that verifies with Standard Webhooks' library."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.tenants.services import tenant_create
from controlplane.webhooks.deliveries import deliveries_enqueue_due
from controlplane.webhooks.models import WebhookDelivery
from controlplane.webhooks.services import endpoint_create, endpoint_rotate, endpoint_test
from tests.conftest import free_port
from tests.controlplane.conftest import Start
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def wait_for(condition: Callable[[], bool]) -> None:
    eventually(condition, seconds=90, message=lambda: list(WebhookDelivery.objects.values()))


@pytest.mark.costly("starts a Celery worker and a receiver")
def test_a_worker_delivers_what_the_library_verifies(
    start: Start, settings: Settings, tmp_path: Path
) -> None:
    port, seen, secret_file = free_port(), tmp_path / "seen", tmp_path / "secret"
    opened = OpenEndpoints.parse([f"127.0.0.1:{port}"])
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)
    tenant = tenant_create(slug="acme", name="Acme")
    url = f"http://127.0.0.1:{port}/200"
    endpoint, secret = endpoint_create(tenant=tenant, url=url, events=["adapter.deleted"])
    secret_file.write_text(secret)
    start("-m", "tests.controlplane.webhooks.receiver", str(port), str(seen), SECRET_FILE=str(secret_file))
    start(
        "-m",
        "celery",
        "-A",
        "controlplane.celery",
        "worker",
        "--pool",
        "solo",
        GRAFTWORK_OUTGOING_ALLOW=f"127.0.0.1:{port}",
    )

    def received() -> list[dict[str, Any]]:
        return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []

    first = endpoint_test(endpoint=endpoint)

    def delivered() -> bool:
        # The receiver may start later than the worker: then it is the retry that arrives.
        WebhookDelivery.objects.filter(status="pending").update(next_at=first.next_at)
        deliveries_enqueue_due()
        return not WebhookDelivery.objects.exclude(status="delivered").exists()

    wait_for(delivered)
    assert received()[-1]["id"] == first.event_id
    assert received()[-1]["event"]["type"] == "webhook.test"
    # The receiver has not taken the new secret yet, and verifies by the old one.
    endpoint, _ = endpoint_rotate(endpoint=endpoint)
    second = endpoint_test(endpoint=endpoint)
    wait_for(delivered)
    assert received()[-1]["id"] == second.event_id
    # Without an overlap the old one verifies nothing.
    endpoint, _ = endpoint_rotate(endpoint=endpoint)
    endpoint, _ = endpoint_rotate(endpoint=endpoint)
    third = endpoint_test(endpoint=endpoint)
    wait_for(lambda: received()[-1] == {"refused": "No matching signature found"})
    wait_for(lambda: WebhookDelivery.objects.get(pk=third.pk).last_status == 400)
