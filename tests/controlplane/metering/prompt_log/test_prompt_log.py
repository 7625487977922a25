"""Opting in and out of the prompt log: writing, access and deletion."""

from __future__ import annotations

import datetime as dt
import json

import pytest
import redis
from django.utils import timezone

from contracts.prompt_log import PROMPT_STREAM
from contracts.usage_event import part_id, uuid7
from controlplane.errors import InvalidInputError, NotFoundError, UnsealError
from controlplane.metering.prompt_log import services
from controlplane.metering.prompt_log.models import KeptPrompt, PromptLog
from controlplane.metering.prompt_log.opening import Opened
from controlplane.metering.prompt_log.selectors import is_kept
from controlplane.metering.prompt_log.services import (
    kept_read,
    prompt_log_end,
    prompt_log_set,
    prompts_expire,
    prompts_take,
)
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create, tenant_resume, tenant_suspend
from gateway.usage.prompt_log import Record, seal

pytestmark = pytest.mark.django_db
NOW_MS = int(timezone.now().timestamp() * 1000)


@pytest.fixture
def tenant() -> Tenant:
    return tenant_create(slug="acme", name="Acme")


def put(redis_url: str, tenant: Tenant, request_id: str, *, key: str = "", at_ms: int = NOW_MS) -> None:
    """Write a record as a gateway does: sealed for the key in the route table."""
    body = json.dumps({"messages": [{"role": "user", "content": f"what of {request_id}?"}]}).encode()
    answer = b'{"choices": [{"message": {"content": "Nothing."}}]}'
    record = Record(
        key or tenant.prompt_key, tenant.pk, request_id, "/v1/chat/completions", body, False, at_ms, [answer]
    )
    entry: dict[str, str | int | bytes] = {"tenant": tenant.pk, "request": request_id, "at": at_ms}
    with redis.Redis.from_url(redis_url) as client:
        client.xadd(PROMPT_STREAM, {**entry, "sealed": seal(record)})


def told_key(tenant: Tenant) -> str:
    entry: str = RouteEntryRow.objects.get(path=f"tenants/{tenant.pk}").entry["prompt_key"]
    return entry


def test_who_opts_in_has_requests_kept_and_read_with_a_record(tenant: Tenant, redis_url: str) -> None:
    assert told_key(tenant) == ""
    prompt_log_set(tenant=tenant, days=7)
    assert told_key(tenant) == tenant.prompt_key != ""
    put(redis_url, tenant, "r1")
    assert prompts_take(redis_url=redis_url) == 1
    assert prompts_take(redis_url=redis_url) == 0, "an entry is taken once"
    kept, found = kept_read(tenant=tenant, request_id="r1")
    assert found.turns == [("user", "what of r1?")]
    assert found.answer_text == "Nothing."
    assert b"what of" not in bytes(kept.encrypted)
    read = AuditRecord.objects.get(tenant="acme", action="prompt.read")
    assert read.after == {"request_id": "r1"}
    with pytest.raises(NotFoundError):
        kept_read(tenant=tenant, request_id="r2")
    with pytest.raises(NotFoundError):
        kept_read(tenant=tenant, request_id="\0")


def test_a_prompts_request_leads_to_the_prompt_log_of_its_call(tenant: Tenant, redis_url: str) -> None:
    prompt_log_set(tenant=tenant, days=7)
    call = uuid7()
    put(redis_url, tenant, call)
    prompts_take(redis_url=redis_url)
    for request_id in (call, part_id(call, 12)):
        assert is_kept(tenant=tenant, request_id=request_id)
        kept, found = kept_read(tenant=tenant, request_id=request_id)
        assert (kept.request_id, found.turns) == (call, [("user", f"what of {call}?")])
    assert not is_kept(tenant=tenant, request_id=call[:-1] + "-12")


def test_what_comes_twice_is_kept_once(tenant: Tenant, redis_url: str) -> None:
    prompt_log_set(tenant=tenant, days=7)
    for _ in range(2):
        put(redis_url, tenant, "r1")
    prompts_take(redis_url=redis_url)
    put(redis_url, tenant, "r1")
    prompts_take(redis_url=redis_url)
    assert KeptPrompt.objects.count() == 1


def test_opting_out_deletes_what_is_kept_and_the_key(tenant: Tenant, redis_url: str) -> None:
    """A record sealed before the opt-out that arrives after it is dropped, also after a second opt-in."""
    prompt_log_set(tenant=tenant, days=7)
    old = tenant.prompt_key
    put(redis_url, tenant, "r1")
    prompts_take(redis_url=redis_url)
    before = bytes(KeptPrompt.objects.get().encrypted)
    put(redis_url, tenant, "late")
    prompt_log_end(tenant=tenant)
    assert not KeptPrompt.objects.exists()
    assert told_key(tenant) == ""
    assert prompts_take(redis_url=redis_url) == 0
    prompt_log_set(tenant=tenant, days=7)
    assert tenant.prompt_key not in ("", old)
    put(redis_url, tenant, "later", key=old)
    assert prompts_take(redis_url=redis_url) == 0
    KeptPrompt.objects.create(tenant=tenant, request_id="r1", at=timezone.now(), encrypted=before)
    with pytest.raises(UnsealError):
        kept_read(tenant=tenant, request_id="r1")
    actions = AuditRecord.objects.filter(action__startswith="prompt_log.").order_by("pk")
    assert [record.action for record in actions] == ["prompt_log.set", "prompt_log.end", "prompt_log.set"]
    assert "private" not in str([(record.before, record.after) for record in actions])
    prompt_log_end(tenant=tenant)
    with pytest.raises(NotFoundError):
        prompt_log_end(tenant=tenant)


def test_prompts_go_after_their_days_of_each_tenant(tenant: Tenant, redis_url: str) -> None:
    other = tenant_create(slug="globex", name="Globex")
    for who, days in ((tenant, 2), (other, 30)):
        prompt_log_set(tenant=who, days=days)
        for ago in (1, 3):
            put(redis_url, who, f"r{ago}", at_ms=NOW_MS - ago * 86_400_000)
    prompts_take(redis_url=redis_url)
    assert prompts_expire() == 1
    assert sorted(KeptPrompt.objects.values_list("tenant", "request_id")) == [
        ("acme", "r1"),
        ("globex", "r1"),
        ("globex", "r3"),
    ]
    key = tenant.prompt_key
    prompt_log_set(tenant=other, days=1)
    assert prompts_expire() == 2, "fewer days hold for what is there as well (a day and a moment is too old)"
    assert prompts_expire() == 0
    prompt_log_set(tenant=tenant, days=3)
    assert tenant.prompt_key == key, "another number of days leaves the key"


@pytest.mark.parametrize("days", [0, 31, -1])
def test_days_are_bounded(tenant: Tenant, days: int) -> None:
    with pytest.raises(InvalidInputError, match="1 to 30"):
        prompt_log_set(tenant=tenant, days=days)
    assert not PromptLog.objects.exists()


def test_a_tenant_fills_the_database_so_far(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_A_DAY", 2)
    prompt_log_set(tenant=tenant, days=7)
    for at in range(5):
        put(redis_url, tenant, f"r{at}")
    with redis.Redis.from_url(redis_url) as client:
        client.xadd(PROMPT_STREAM, {"tenant": "acme", "request": "junk"})
        client.xadd(PROMPT_STREAM, {"tenant": "nobody", "request": "r", "at": 1, "sealed": b"\x01" * 60})
    prompts_take(redis_url=redis_url)
    put(redis_url, tenant, "r9")
    prompts_take(redis_url=redis_url)
    assert sorted(KeptPrompt.objects.values_list("request_id", flat=True)) == ["r0", "r1"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(PROMPT_STREAM) == 0


def test_a_suspension_changes_nothing_of_it(tenant: Tenant) -> None:
    prompt_log_set(tenant=tenant, days=7)
    tenant.refresh_from_db()
    tenant_suspend(tenant=tenant, reason="unpaid")
    assert told_key(tenant) == tenant.prompt_key
    tenant_resume(tenant=tenant)
    assert told_key(tenant) == tenant.prompt_key != ""


@pytest.mark.parametrize(
    ("request_text", "answer", "turns", "text"),
    [
        ('{"prompt": "a"}', '{"choices": [{"text": "b"}]}', [("user", "a")], "b"),
        (
            '{"input": "a", "instructions": "i"}',
            'data: {"type": "response.output_text.delta", "delta": "b"}\n\n',
            [("system", "i"), ("user", "a")],
            "b",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}',
            'data: {"choices": [{"delta": {"content": "b"}}]}\n\ndata: {"choices": [{"de',
            [("user", "a")],
            "b",
        ),
        ('{"messages": [{"role": "user", "cont', "", [("", '{"messages": [{"role": "user", "cont')], ""),
        ('{"messages": 5}', '{"error": {"message": "no"}}', [("user", "5")], '{"error": {"message": "no"}}'),
        ("[]", "[]", [("", "[]")], "[]"),
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            '{"choices": [{"message": {"content": null, "tool_calls": [{"function": {"name": "f"}}]}}]}',
            [("user", "a")],
            '{"name": "f"}',
        ),
    ],
)
def test_bodies_of_every_endpoint_are_read_or_shown_as_they_are(
    request_text: str, answer: str, turns: list[tuple[str, str]], text: str
) -> None:
    found = Opened("/v1/x", request_text, answer, False)
    assert found.turns == turns
    assert found.answer_text == text


def test_deleting_a_tenant_leaves_nothing(tenant: Tenant, redis_url: str) -> None:
    prompt_log_set(tenant=tenant, days=7)
    put(redis_url, tenant, "r1", at_ms=NOW_MS - int(dt.timedelta(hours=1).total_seconds() * 1000))
    prompts_take(redis_url=redis_url)
    tenant.delete()
    assert not KeptPrompt.objects.exists()
    assert not PromptLog.objects.exists()
