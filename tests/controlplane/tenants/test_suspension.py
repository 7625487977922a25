"""A suspended tenant: its calls are refused with a message, its pages say so, and its data stays."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from functools import partial

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client

from controlplane.adapters.models import Adapter
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.models import UsageRollup
from controlplane.operations.services import tenant_deletion_cancel, tenant_deletion_schedule
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.services import (
    api_key_create,
    api_key_revoke,
    tenant_resume,
    tenant_suspend,
    user_create,
)
from gateway.errors import TenantSuspended
from gateway.routing import authenticate

pytestmark = pytest.mark.django_db
REST, PAGE = "/api/v1/tenants/acme/suspension", "/staff/tenants/acme/"
WHY = "Invoice ACME-000003 is overdue <b>"


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def member(tenant: Tenant) -> Client:
    client = Client()
    client.force_login(user_create(email="o@acme.test", password="long-enough-7", tenant=tenant))
    return client


def test_calls_are_refused_and_taken_again(tenant: Tenant, other_tenant: Tenant) -> None:
    _, text = api_key_create(tenant=tenant, name="app", scopes=["inference"])
    _, others = api_key_create(tenant=other_tenant, name="app", scopes=["inference"])
    tenant_suspend(tenant=tenant, reason=WHY)
    with pytest.raises(TenantSuspended, match="acme of this API key is suspended"):
        authenticate(route_table(), text)
    assert authenticate(route_table(), others)
    salt = tenant.cache_salt
    tenant_resume(tenant=tenant)
    assert authenticate(route_table(), text)
    assert route_table().tenants["acme"].cache_salt == salt


def test_what_cannot_be_done_says_why(tenant: Tenant) -> None:
    for reason, told in (
        ("", "reason is required"),
        ("  ", "reason is required"),
        ("x" * 501, "at most 500"),
    ):
        with pytest.raises(InvalidInputError, match=told):
            tenant_suspend(tenant=tenant, reason=reason)
    with pytest.raises(ConflictError, match="not suspended"):
        tenant_resume(tenant=tenant)
    tenant_suspend(tenant=tenant, reason=WHY)
    with pytest.raises(ConflictError, match="already suspended"):
        tenant_suspend(tenant=tenant, reason="again")
    assert Tenant.objects.get().suspended_reason == WHY


def test_a_deletion_that_is_cancelled_leaves_it_suspended(tenant: Tenant) -> None:
    tenant_suspend(tenant=tenant, reason=WHY)
    deletion = tenant_deletion_schedule(tenant=tenant, confirm="acme")
    with pytest.raises(ConflictError, match="cancel the deletion first"):
        tenant_resume(tenant=tenant)
    tenant_deletion_cancel(deletion=deletion)
    assert route_table().tenants["acme"].suspended
    tenant_resume(tenant=tenant)
    tenant_deletion_schedule(tenant=tenant, confirm="acme")
    with pytest.raises(ConflictError, match="scheduled for deletion"):
        tenant_suspend(tenant=tenant, reason=WHY)
    assert "acme" not in route_table().tenants


@pytest.mark.django_db(transaction=True)
def test_of_two_who_suspend_at_once_one_does(tenant: Tenant) -> None:
    told: list[str] = []
    barrier = threading.Barrier(2)

    def suspend(reason: str) -> None:
        barrier.wait()
        try:
            tenant_suspend(tenant=Tenant.objects.get(pk="acme"), reason=reason)
        except ConflictError:
            told.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=suspend, args=(reason,)) for reason in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["refused"]
    record = AuditRecord.objects.get(action="tenant.suspend")
    assert record.after is not None
    assert record.after["reason"] == Tenant.objects.get().suspended_reason


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL locks rows")
@pytest.mark.parametrize("kind", ["resume", "cancel"])
def test_a_row_of_the_tenant_is_inserted_meanwhile(tenant: Tenant, kind: str) -> None:
    """The inserting transaction may hold a lock that the other needs: neither waits for the tenant's row."""
    failed: list[Exception] = []

    def insert() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '500ms'")
                ScopeLimits.objects.create(tenant_id="acme")
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except DatabaseError as error:
            failed.append(error)
        finally:
            connection.close()

    end: Callable[[], object]
    if kind == "resume":
        tenant_suspend(tenant=tenant, reason=WHY)
        end = partial(tenant_resume, tenant=tenant)
    else:
        deletion = tenant_deletion_schedule(tenant=tenant, confirm="acme")
        end = partial(tenant_deletion_cancel, deletion=deletion)
    with transaction.atomic():
        end()
        thread = threading.Thread(target=insert)
        thread.start()
        thread.join()
    assert failed == []


def test_by_rest_with_actor_and_reason_in_the_log(staff: Client, tenant: Tenant) -> None:
    assert staff.get(REST).json() == {"tenant": "acme", "suspended_at": None, "reason": ""}
    assert staff.delete(REST).status_code == 409
    assert staff.post(REST, {}, content_type="application/json").status_code == 400
    made = staff.post(REST, {"reason": WHY}, content_type="application/json")
    assert (made.status_code, made.json()["reason"]) == (201, WHY)
    assert staff.post(REST, {"reason": WHY}, content_type="application/json").status_code == 409
    (listed,) = staff.get("/api/v1/tenants?suspended=true").json()["results"]
    assert listed["suspended_at"] is not None
    assert staff.get("/api/v1/tenants?suspended=false").json()["results"] == []
    etag = staff.get(REST)["ETag"]
    assert staff.delete(REST, headers={"If-Match": '"other"'}).status_code == 412
    assert staff.delete(REST, headers={"If-Match": etag}).status_code == 204
    records = AuditRecord.objects.filter(tenant="acme", action__in=("tenant.suspend", "tenant.resume"))
    told = [(row.action, row.actor_name) for row in records.order_by("number")]
    assert told == [("tenant.suspend", "s@graft.test"), ("tenant.resume", "s@graft.test")]
    resumed = records.get(action="tenant.resume")
    assert resumed.before is not None
    assert resumed.before["reason"] == WHY


def test_its_pages_tell_it_and_stay(staff: Client, member: Client) -> None:
    assert 'data-testid="suspended"' not in member.get("/t/acme/").text
    staff.post(f"{PAGE}suspend", {"reason": WHY})
    for page in ("/t/acme/", "/t/acme/keys/", "/t/acme/billing/"):
        text = member.get(page).text
        assert 'data-testid="suspended"' in text, page
        assert "ACME-000003 is overdue &lt;b&gt;" in text, page
    page = staff.get(PAGE).text
    assert 'data-testid="suspension-reason"' in page
    assert 'data-testid="tenant-suspend"' not in page
    assert "suspended</span>" in staff.get("/staff/tenants/").text
    staff.post(f"{PAGE}resume")
    assert 'data-testid="suspended"' not in member.get("/t/acme/").text
    assert "reason is required" in staff.post(f"{PAGE}suspend", {"reason": " "}, follow=True).text
    assert "is not suspended" in staff.post(f"{PAGE}resume", follow=True).text
    assert member.post(f"{PAGE}suspend", {"reason": WHY}).status_code == 404
    assert Tenant.objects.get().suspended_at is None
    assert User.objects.count() == 2


def test_the_list_tells_keys_adapters_and_what_was_spent(
    staff: Client, tenant: Tenant, other_tenant: Tenant, base_model: BaseModel
) -> None:
    today = dt.datetime.now(dt.UTC).date()
    book = price_book_create(name="list")
    price_set(
        book=book,
        base_model="tiny-base",
        effective_from=today.replace(day=1),
        input_nano=10**6,
        cached_input_nano=0,
        output_nano=0,
    )
    UsageRollup.objects.create(
        day=today,
        tenant="acme",
        project="p",
        key_id="k",
        adapter="",
        alias="",
        base_model="tiny-base",
        backend="worker",
        status="ok",
        requests=3,
        prompt_tokens=2_500,
        cached_tokens=0,
        completion_tokens=0,
    )
    usage_post(tenant="acme", start=today, end=today)
    for number in range(2):
        Adapter.objects.create(tenant=tenant, name=f"a-{number}", base_model=base_model)
        api_key_create(tenant=tenant, name=f"k-{number}", scopes=["inference"])
    revoked, _ = api_key_create(tenant=tenant, name="old", scopes=["inference"])
    api_key_revoke(api_key=revoked)
    row = staff.get("/staff/tenants/?search=acme").text
    for label, value in (("Keys", "2"), ("Adapters", "2"), ("Spent this month", "$2.50"), ("Requests", "3")):
        assert f'data-label="{label}">{value}</td>' in row, label
    others = staff.get("/staff/tenants/?search=globex").text
    assert 'data-label="Spent this month">$0.00</td>' in others
