"""Audit records: actor, action, before and after, address; in the change's transaction, no secrets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from pytest_django import Settings

from contracts.addresses import Networks
from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.tasks import validate
from controlplane.catalog.models import BaseModel
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.audit.origin import acting, operator
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import HIDDEN, difference, plain
from controlplane.platform.celery import app as celery
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, api_key_revoke, api_key_rotate, user_create

pytestmark = pytest.mark.django_db


def newest() -> AuditRecord:
    return AuditRecord.objects.latest("id")


def test_a_keys_change_tells_the_key_and_where_it_was_used(tenant: Tenant, settings: Settings) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, trusted_proxies=Networks(["127.0.0.0/8"]))
    key, text = api_key_create(tenant=tenant, name="manager", scopes=["manage"])
    headers = {
        "Authorization": f"Bearer {text}",
        "X-Forwarded-For": "203.0.113.9, 127.0.0.1",
        "User-Agent": "cli/1",
        "X-Request-ID": "abc-1",
    }
    body = {"name": "backend", "scopes": ["inference"]}
    reply = Client().post("/api/v1/keys", body, content_type="application/json", headers=headers)
    record = newest()
    assert (record.tenant, record.action) == ("acme", "api_key.create")
    assert (record.actor_kind, record.actor_id) == ("key", key.pk)
    assert (record.address, record.user_agent, record.request_id) == ("203.0.113.9", "cli/1", "abc-1")
    assert (record.target_type, record.target_id) == ("apikey", reply.json()["public_id"])
    assert record.before is None
    assert record.after is not None
    assert record.after["name"] == "backend"
    assert reply["X-Request-ID"] == "abc-1"


def test_what_a_stranger_writes_into_headers_is_not_believed(tenant: Tenant) -> None:
    _, text = api_key_create(tenant=tenant, name="manager", scopes=["manage"])
    headers = {"Authorization": f"Bearer {text}", "X-Forwarded-For": "203.0.113.9", "X-Request-ID": "forged"}
    body = {"name": "backend", "scopes": ["inference"]}
    reply = Client().post("/api/v1/keys", body, content_type="application/json", headers=headers)
    record = newest()
    assert (record.address, record.request_id) == ("127.0.0.1", reply["X-Request-ID"])
    assert record.request_id != "forged"


def test_people_staff_and_the_system_are_told_apart(tenant: Tenant, base_model: BaseModel) -> None:
    member = user_create(email="m@acme.test", password="long-enough-7", tenant=tenant)
    staff = user_create(email="s@graft.test", password="long-enough-7", is_staff=True)
    client = Client()
    client.force_login(member)
    client.post("/t/acme/keys/", {"name": "k", "scopes": "inference", "lifetime": ""})
    record = newest()
    assert (record.action, record.actor_kind, record.actor_name) == ("api_key.create", "user", member.email)
    client.force_login(staff)
    body = {"requests_per_minute": 5}
    path, headers = "/api/v1/tenants/acme/limits", {"If-Match": "*"}
    assert client.put(path, body, content_type="application/json", headers=headers).status_code == 200
    record = newest()
    assert (record.action, record.actor_kind, record.actor_id) == ("limits.set", "staff", str(staff.pk))
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)
    version = AdapterVersion.objects.create(adapter=adapter, number=1, staging="incoming/nothing")
    celery.tasks[validate.name].apply(kwargs={"version_id": version.pk})
    record = newest()
    assert (record.action, record.actor_kind) == ("adapter_version.refuse", "system")
    assert record.actor_id == "adapters.validate"
    with acting(operator("kim")):
        tenant_limits_set(tenant=tenant)
    assert (newest().actor_kind, newest().actor_name) == ("staff", "kim")


def test_before_and_after_hold_what_changed(tenant: Tenant, base_model: BaseModel) -> None:
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)
    for number in (1, 2):
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
        )
    alias_move(adapter=adapter, name="prod", number=1)
    assert (newest().action, newest().before) == ("alias.move", None)
    alias_move(adapter=adapter, name="prod", number=2)
    assert (newest().before, newest().after) == ({"version": 1}, {"version": 2})
    count = AuditRecord.objects.count()
    alias_move(adapter=adapter, name="prod", number=2)
    assert AuditRecord.objects.count() == count, "nothing changed, so there is nothing to record"
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    stale = type(key).objects.get(pk=key.pk)
    api_key_revoke(api_key=key)
    assert newest().before == {"revoked_at": None}
    api_key_revoke(api_key=stale)
    assert AuditRecord.objects.filter(action="api_key.revoke").count() == 1


def test_a_change_that_fails_is_not_recorded(tenant: Tenant) -> None:
    count = AuditRecord.objects.count()

    def fail() -> None:
        with transaction.atomic():
            api_key_create(tenant=tenant, name="k", scopes=["manage"])
            assert AuditRecord.objects.count() == count + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert AuditRecord.objects.count() == count


@pytest.mark.django_db(transaction=True)
def test_a_record_without_a_transaction_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"transaction\.atomic"):
        audit_record(tenant="", action="nothing.happened", target=Tenant(pk="acme"))


def test_no_secret_is_recorded(tenant: Tenant) -> None:
    user = user_create(email="m@acme.test", password="a-password-7-x", tenant=tenant)
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    rotated, new_text = api_key_rotate(api_key=key)
    secrets = [text.rpartition("_")[2], new_text.rpartition("_")[2]]
    digests = [hashlib.sha256(secret.encode()).hexdigest() for secret in secrets]
    log = json.dumps(list(AuditRecord.objects.values()), default=str)
    for secret in (*secrets, *digests, "a-password-7-x", user.password, tenant.cache_salt):
        assert secret not in log
    assert newest().action == "api_key.rotate"
    assert rotated.rotated_at is not None
    assert (newest().after or {})["rotated_at"] == rotated.rotated_at.isoformat()


def test_values_are_kept_plain_and_short() -> None:
    values: dict[str, Any] = {
        "hf_token": "hf_abc",
        "nested": {"password": "x", "n": 1},
        "tokens_per_minute": 5,
        "empty_secret": "",
        "raw": b"\0",
        "text": "a\0\ud800",
        "large": list(range(5000)),
        "huge": 1e300,
    }
    kept = plain(values)
    assert plain({"environment": {"HF_TOKEN": "x", "MAX_TOKENS": "1"}}) == {
        "environment": {"HF_TOKEN": HIDDEN, "MAX_TOKENS": "1"}
    }
    assert kept["hf_token"] == kept["raw"] == kept["nested"]["password"] == HIDDEN
    assert (kept["nested"]["n"], kept["tokens_per_minute"], kept["empty_secret"]) == (1, 5, "")
    assert (kept["text"], kept["huge"]) == ("a\\0\\ud800", "1e+300")
    assert len(kept["large"]) < 200
    assert plain(kept) == kept
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ({"b": 2}, {"b": 3})
