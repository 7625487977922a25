"""Pages of logged prompts: opting in, the content shown, and access by tenant and role."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.metering.prompt_log.models import KeptPrompt, PromptLog
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import Role
from gateway.usage.prompt_log import Record, seal
from tests.controlplane.console.conftest import HOSTILE, Team
from tests.controlplane.metering.event_log import logged

PAGE = "/t/acme/prompt-log/"


@pytest.fixture
def dev(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def keep(acme: Team, said: str, answer: str) -> str:
    """Store a logged prompt; return its request id."""
    request_id = logged("acme", timezone.now()).request_id
    acme.tenant.refresh_from_db()
    body = json.dumps({"messages": [{"role": "user", "content": said}]}).encode()
    told = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
    record = Record(
        acme.tenant.prompt_key, "acme", request_id, "/v1/chat/completions", body, False, 0, [told]
    )
    KeptPrompt.objects.create(
        tenant=acme.tenant, request_id=request_id, at=timezone.now(), encrypted=seal(record)
    )
    return request_id


def test_opting_in_reading_and_opting_out(dev: Client, acme: Team) -> None:
    assert "Prompts and responses are not stored" in dev.get(PAGE).content.decode()
    assert "unless you opt in" in dev.get("/t/acme/requests/").content.decode()
    assert dev.post(PAGE, {"days": "3"}).status_code == 302
    log = PromptLog.objects.get()
    assert (log.days, log.begun_by) == (3, acme.user)
    request_id = keep(acme, HOSTILE, "Aye.")
    page = dev.get(f"/t/acme/requests/{request_id}/").content.decode()
    assert "Encrypted. Viewing it is recorded" in page
    assert "Aye." not in page
    shown = dev.post(f"/t/acme/requests/{request_id}/prompt").content.decode()
    assert "Aye." in shown
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
    assert AuditRecord.objects.filter(action="prompt.read", actor_name=acme.user.email).count() == 1
    assert ">1<" in dev.get(PAGE).content.decode(), "how many are kept"
    assert dev.post(PAGE + "end").status_code == 302
    assert not KeptPrompt.objects.exists()
    assert dev.post(f"/t/acme/requests/{request_id}/prompt").status_code == 404
    assert "prompt-show" not in dev.get(f"/t/acme/requests/{request_id}/").content.decode()
    assert dev.post(PAGE + "end").status_code == 302, "a second click ends nothing more"


@pytest.mark.parametrize("days", ["", "0", "31", "x", "9" * 30, "\u0663"])
def test_days_that_cannot_be_are_refused_at_their_field(dev: Client, days: str) -> None:
    answer = dev.post(PAGE, {"days": days})
    assert answer.status_code == 422
    assert "1 to 30 days" in answer.content.decode()
    assert not PromptLog.objects.exists()


@pytest.mark.parametrize(
    ("role", "reads", "writes"),
    [(Role.ADMIN, 200, 302), (Role.ENGINEER, 200, 403), (Role.BILLING, 403, 403), (Role.VIEWER, 403, 403)],
)
def test_roles_read_or_turn_it_on(dev: Client, acme: Team, role: Role, reads: int, writes: int) -> None:
    dev.post(PAGE, {"days": "7"})
    request_id = keep(acme, "hush", "Aye.")
    Membership.objects.filter(user=acme.user).update(role=role)
    assert dev.get(PAGE).status_code == reads
    answer = dev.post(f"/t/acme/requests/{request_id}/prompt")
    assert answer.status_code == reads
    assert ("Aye." in answer.content.decode()) == (reads == 200)
    assert dev.post(PAGE, {"days": "1"}).status_code == writes
    assert dev.post(PAGE + "end").status_code == writes
    if role is not Role.BILLING:
        page = dev.get(f"/t/acme/requests/{request_id}/").content.decode()
        assert ("prompt-show" in page) == (reads == 200 and writes == 403)


def test_another_tenants_prompts_are_not_there(dev: Client, acme: Team, globex: Team) -> None:
    dev.post(PAGE, {"days": "7"})
    request_id = keep(acme, "hush", "Aye.")
    dev.force_login(globex.user)
    assert dev.post(f"/t/acme/requests/{request_id}/prompt").status_code == 404
    dev.post("/t/globex/prompt-log/", {"days": "7"})
    answer = dev.post(f"/t/globex/requests/{request_id}/prompt")
    assert answer.status_code == 404
    assert "Aye." not in answer.content.decode()
