"""A tenant's deletion: effective at once, reversible within the grace time, complete after it."""

from __future__ import annotations

import datetime as dt
from io import BytesIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.uploads.services import upload_create
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError
from controlplane.metering.models import DeadUsageEvent, UsageRollup
from controlplane.operations import services
from controlplane.operations.models import TenantDeletion
from controlplane.operations.selectors import KEPT, tenant_paths, tenant_rows
from controlplane.operations.services import (
    tenant_deletion_cancel,
    tenant_deletion_schedule,
    tenants_purge_due,
)
from controlplane.operations.tasks import purge_tenants
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.services import key_limits_set, tenant_limits_set
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.services import api_key_create, tenant_create, user_create
from controlplane.webhooks.services import endpoint_create, endpoint_test
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db


def rows_of(slug: str) -> dict[str, int]:
    """Count the tenant's rows of each kind."""
    counts = {
        model._meta.label: len(list(tenant_rows(slug=slug, model=model, path=path)))
        for model, path in tenant_paths().items()
    }
    return {label: count for label, count in counts.items() if count}


@pytest.fixture
def full(tenant: Tenant, other_tenant: Tenant, base_model: BaseModel) -> str:
    """Acme with something of nearly every kind; the text of a key that manages it."""
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=files)
    version_validate(version_id=version.pk)
    alias_move(adapter=version.adapter, name="prod", number=1)
    key, _ = api_key_create(tenant=tenant, name="app", scopes=["inference"])
    _, manage = api_key_create(tenant=tenant, name="ops", scopes=["manage"])
    tenant_limits_set(tenant=tenant, requests_per_minute=10)
    key_limits_set(api_key=key, requests_per_minute=5)
    endpoint, _ = endpoint_create(tenant=tenant, url="https://hooks.example/", events=["adapter.deleted"])
    endpoint_test(endpoint=endpoint)
    upload_create(tenant=tenant, name="adapter_config.json", size=10)
    both = user_create(email="both@acme.test", password="long-enough-7", tenant=tenant)
    Membership.objects.create(user=both, tenant=other_tenant)
    user_create(email="only@acme.test", password="long-enough-7", tenant=tenant)
    values = dict.fromkeys(("project", "key_id", "adapter", "alias", "base_model", "backend", "status"), "x")
    sums = dict.fromkeys(("requests", "prompt_tokens", "cached_tokens", "completion_tokens"), 1)
    UsageRollup.objects.create(day=dt.date(2026, 1, 1), tenant="acme", **values, **sums)
    DeadUsageEvent.objects.create(stream_id="ce-x-1", tenant="acme", payload="{}", reason="no such model")
    return manage


def schedule(tenant: Tenant) -> TenantDeletion:
    return tenant_deletion_schedule(tenant=tenant, confirm=tenant.pk, reason="left us")


def test_a_deleted_tenant_is_shut_out_at_once_and_loses_nothing(full: str, tenant: Tenant) -> None:
    member = Client()
    member.force_login(User.objects.get(email="only@acme.test"))
    program = Client(headers={"Authorization": f"Bearer {full}"})
    assert member.get("/t/acme/").status_code == 200
    assert program.get("/api/v1/keys").status_code == 200
    before = rows_of("acme")
    deletion = schedule(tenant)
    assert "acme" not in route_table().tenants, "without its tenant no key opens a gateway"
    assert member.get("/t/acme/").status_code == 404
    assert member.get("/api/v1/keys").status_code == 403
    assert program.get("/api/v1/keys").status_code == 401
    with pytest.raises(ConflictError, match="already"):
        schedule(tenant)
    purge_tenants()
    tenant_deletion_cancel(deletion=deletion)
    assert "acme" in route_table().tenants
    assert member.get("/t/acme/").status_code == 200
    assert program.get("/api/v1/keys").status_code == 200
    logs = {"audit.AuditRecord": before["audit.AuditRecord"] + 2}
    assert rows_of("acme") == before | logs
    assert not TenantDeletion.objects.exists()


def test_after_the_grace_time_nothing_is_left_but_what_is_kept(
    full: str, tenant: Tenant, tmp_path: Path
) -> None:
    weights = list((tmp_path / "artifacts").rglob("adapter_model.safetensors"))
    assert len(weights) == 1
    others = rows_of("globex")
    deletion = schedule(tenant)
    TenantDeletion.objects.update(purge_after=timezone.now())
    with pytest.raises(ConflictError, match="cannot be restored"):
        tenant_deletion_cancel(deletion=deletion)
    assert tenants_purge_due() == 1
    assert set(rows_of("acme")) <= set(KEPT)
    assert rows_of("acme")["metering.UsageRollup"] == 1
    assert not weights[0].exists()
    assert not [path for path in RouteEntryRow.objects.values_list("path", flat=True) if "acme" in path]
    keys = RouteEntryRow.objects.filter(path__startswith="keys/")
    assert not keys.exists()
    assert set(User.objects.values_list("email", flat=True)) == {"both@acme.test"}
    assert rows_of("globex") == others
    record = AuditRecord.objects.filter(tenant="acme").latest("number")
    assert (record.action, record.after) == ("tenant.purge", {"users": 1, "keys": 2})
    call_command("audit_verify")
    assert TenantDeletion.objects.get().purged_at is not None
    assert tenants_purge_due() == 0
    with pytest.raises(ConflictError, match="was deleted"):
        tenant_create(slug="acme", name="Another")


def test_a_purge_that_was_interrupted_goes_on(
    full: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(tenant)
    TenantDeletion.objects.update(purge_after=timezone.now())

    with monkeypatch.context() as patch:
        patch.setattr(services, "_purge_rows", lambda deletion: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tenants_purge_due()
    assert Tenant.objects.filter(pk="acme").exists()
    assert tenants_purge_due() == 1
    assert not Tenant.objects.filter(pk="acme").exists()


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def test_by_rest(staff: Client, tenant: Tenant) -> None:
    path = "/api/v1/tenants/acme/deletion"
    assert staff.get(path).status_code == 404
    wrong = staff.post(path, {"confirm": "globex"}, content_type="application/json")
    assert wrong.status_code == 400
    made = staff.post(path, {"confirm": "acme", "reason": "left"}, content_type="application/json")
    assert (made.status_code, made.json()["requested_by"]) == (201, "s@graft.test")
    assert staff.post(path, {"confirm": "acme"}, content_type="application/json").status_code == 409
    assert staff.delete(path, headers={"If-Match": staff.get(path)["ETag"]}).status_code == 204
    assert Tenant.objects.get().disabled_at is None


def test_by_the_staff_pages(staff: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    assert 'href="/staff/tenants/acme/"' in staff.get("/staff/tenants/").content.decode()
    assert "globex" not in staff.get("/staff/tenants/", {"search": "ac"}).content.decode()
    path = "/staff/tenants/acme/"
    staff.post(f"{path}delete", {"confirm": "wrong"})
    assert Tenant.objects.get(pk="acme").disabled_at is None
    staff.post(f"{path}delete", {"confirm": "acme"})
    assert 'data-testid="deletion-cancel"' in staff.get(path).content.decode()
    staff.post(f"{path}cancel")
    assert Tenant.objects.get(pk="acme").disabled_at is None
    assert staff.get("/staff/tenants/no-such/").status_code == 404


@pytest.mark.parametrize("page", ["", "acme/", "acme/export", "acme/delete", "acme/cancel"])
def test_staff_pages_are_for_staff(page: str, tenant: Tenant) -> None:
    member = Client()
    member.force_login(user_create(email="o@acme.test", password="long-enough-7", tenant=tenant))
    call = "post" if page.endswith(("delete", "cancel")) else "get"
    data = {"confirm": "acme"} if call == "post" else {}
    assert getattr(member, call)(f"/staff/tenants/{page}", data).status_code == 404
    assert getattr(Client(), call)(f"/staff/tenants/{page}", data).status_code == 302
    assert Tenant.objects.get().disabled_at is None


def test_every_model_is_a_tenants_or_says_why_not() -> None:
    paths = {model._meta.label: path for model, path in tenant_paths().items()}
    assert paths["adapters.AliasArm"] == "alias__adapter__tenant_id"
    assert paths["webhooks.WebhookDelivery"] == "event__tenant_id"
    assert paths["metering.UsageRollup"] == "tenant"
    assert SourceCredential._meta.label in paths
    assert set(KEPT) <= set(paths)
