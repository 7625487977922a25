"""Staff's pages of tenants: making one, its limits and quota; everybody's audit log."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from contracts.limits import Limit
from controlplane.adapters.models import AdapterQuota
from controlplane.adapters.quotas import quota_set
from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.services import upload_create
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Copy
from controlplane.metering.models import UsageRollup
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.services import prepaid_stop_set, tenant_limits_set
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_suspend, user_create
from tests.controlplane.conftest import write_checkpoint
from tests.controlplane.console.conftest import make_adapter, make_team, use
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
URL = "/staff/tenants/acme/"
EMPTY = {
    "requests_per_minute": "",
    "tokens_per_minute": "",
    "concurrency": "",
    "priority": "",
    "budget": "",
    "budget_period": "month",
    "budget_alert_percent": "",
    "weight": "",
}


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def field_value(staff: Client, name: str) -> str:
    """Return the value of the form field `name`."""
    found = re.search(rf'name="{name}"[^>]*value="([^"]+)"', staff.get(URL).content.decode())
    assert found is not None, name
    return found[1]


def test_limits_are_set_and_prepaid_stop_stays(tenant: Tenant, staff: Client) -> None:
    prepaid_stop_set(tenant=tenant, stops=True)
    values = EMPTY | {"tokens_per_minute": "50000", "budget": "250", "budget_period": "day", "weight": "2.5"}
    assert send(staff, URL, values, form="tenant-limits", to=f"{URL}limits").status_code == 302
    row = ScopeLimits.objects.get(tenant=tenant, api_key=None)
    assert (row.tokens_per_minute, row.budget_nano, row.budget_period) == (50_000, 250 * 10**9, "day")
    assert (row.weight, row.prepaid_stop, row.concurrency) == (2.5, True, None)
    limits = route_table().limits["tenant:acme"]
    assert Limit("tokens", 50_000) in limits.limits
    assert limits.weight == 2.5
    text = staff.get(URL).content.decode()
    assert 'value="50000"' in text
    assert 'value="2.5"' in text
    record = AuditRecord.objects.filter(tenant="acme", action="limits.set").latest("number")
    assert record.actor_name == "s@graft.test"


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("requests_per_minute", "-1", "error-requests_per_minute"),
        ("tokens_per_minute", "9" * 19, "error-tokens_per_minute"),
        ("weight", "0", "error-weight"),
        ("weight", "101", "error-weight"),
        ("weight", "inf", "error-weight"),
        ("priority", "10", "error-priority"),
        ("budget", "1e999999", "error-budget"),
        ("budget_alert_percent", "101", "error-budget_alert_percent"),
    ],
)
def test_what_cannot_be_is_said_at_its_field(
    tenant: Tenant, staff: Client, field: str, value: str, error: str
) -> None:
    answer = send(staff, URL, EMPTY | {field: value}, form="tenant-limits", to=f"{URL}limits")
    text = answer.content.decode()
    assert (answer.status_code, f'id="{error}"' in text, f'value="{value}"' in text) == (422, True, True)
    assert not ScopeLimits.objects.exists()


def test_the_quota_is_set_and_told_to_the_tenant(tenant: Tenant, staff: Client) -> None:
    values = {"adapters": "20", "versions": "", "size_gb": "1.5"}
    assert send(staff, URL, values, form="tenant-quota", to=f"{URL}quota").status_code == 302
    row = AdapterQuota.objects.get(tenant=tenant)
    assert (row.adapters, row.versions, row.size_bytes) == (20, None, 1_500_000_000)
    wrong = send(staff, URL, values | {"versions": "some"}, form="tenant-quota", to=f"{URL}quota")
    assert (wrong.status_code, "error-versions" in wrong.content.decode()) == (422, True)
    member = Client()
    member.force_login(user_create(email="m@acme.test", password="long-enough-7", tenant=tenant))
    page = member.get("/t/acme/adapters/").content.decode()
    assert "0 of 20 adapters, 0 B of 1.5 GB" in page


@pytest.mark.parametrize("weight", [12.3456789, 12.345678901234567, 0.01, 2.0, 100.0])
def test_what_is_shown_is_exact(tenant: Tenant, staff: Client, weight: float) -> None:
    tenant_limits_set(tenant=tenant, weight=weight)
    values = EMPTY | {"weight": field_value(staff, "weight"), "concurrency": "3"}
    assert send(staff, URL, values, form="tenant-limits", to=f"{URL}limits").status_code == 302
    row = ScopeLimits.objects.get()
    assert (row.weight, row.concurrency) == (weight, 3)


def test_the_largest_quota_is_saved_as_it_is_shown(tenant: Tenant, staff: Client) -> None:
    quota_set(tenant=tenant, size_bytes=1 << 60)
    values = {"adapters": "3", "versions": "", "size_gb": field_value(staff, "size_gb")}
    assert send(staff, URL, values, form="tenant-quota", to=f"{URL}quota").status_code == 302
    row = AdapterQuota.objects.get(tenant=tenant)
    assert (row.adapters, row.size_bytes) == (3, 1 << 60)
    larger = send(staff, URL, values | {"size_gb": "2000000000"}, form="tenant-quota", to=f"{URL}quota")
    assert "Gigabytes must be from 0 to 1152921504.606846976" in larger.content.decode()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("budget", "10000000", "The budget must be from 0 to 9000000 USD"),
        ("tokens_per_minute", "9" * 19, "Tokens per minute must be from 0 to 9000000000000000"),
        ("weight", "101", "The weight must be from 0.01 to 100,"),
        ("budget_alert_percent", "0", "The percentage must be from 1 to 100"),
    ],
)
def test_bounds_are_in_the_forms_words(
    tenant: Tenant, staff: Client, field: str, value: str, said: str
) -> None:
    answer = send(staff, URL, EMPTY | {field: value}, form="tenant-limits", to=f"{URL}limits")
    assert (answer.status_code, said in answer.content.decode()) == (422, True)


@pytest.mark.parametrize(
    ("form", "values", "now"),
    [
        ("limits", EMPTY | {"concurrency": "7"}, "concurrency 7; budget period month"),
        ("quota", {"adapters": "7", "versions": "", "size_gb": ""}, "adapters 7"),
    ],
)
def test_who_was_slower_is_told_what_is_in_force(
    tenant: Tenant, staff: Client, form: str, values: dict[str, Any], now: str
) -> None:
    early = form_tag(staff, URL, f"tenant-{form}")
    assert send(staff, URL, values, form=f"tenant-{form}", to=f"{URL}{form}").status_code == 302
    changed = {name: "9" if text == "7" else text for name, text in values.items()}
    late = staff.post(f"{URL}{form}", {**changed, "seen": early})
    assert (late.status_code, f"Current value: {now}." in late.content.decode()) == (422, True)
    assert ScopeLimits.objects.filter(concurrency=9).exists() is False
    assert AdapterQuota.objects.filter(adapters=9).exists() is False


def test_a_tenant_is_made_with_its_owner_invited(staff: Client) -> None:
    url = "/staff/tenants/"
    made = staff.post(url, {"id": "initech", "name": "Initech", "owner": "bill@initech.test"})
    assert made["Location"] == "/staff/tenants/initech/"
    invitation = Invitation.objects.get(tenant="initech")
    assert (invitation.email, invitation.role) == ("bill@initech.test", "owner")
    assert route_table().tenants["initech"].name == "Initech"
    for values, error in (
        ({"id": "initech"}, "error-tenant-id"),
        ({"id": "Not A Slug"}, "error-tenant-id"),
        ({"id": "hooli", "owner": "nobody"}, "error-tenant-owner"),
        ({"id": "hooli", "name": "n" * 201}, "error-tenant-name"),
        # Cut off after 254 characters it would be an address of another domain.
        ({"id": "hooli", "owner": f"{'a' * 60}@{'b.' * 90}example.com.other.test"}, "error-tenant-owner"),
    ):
        refused = staff.post(url, values)
        assert (refused.status_code, f'id="{error}"' in refused.content.decode()) == (422, True), values
    assert not Tenant.objects.filter(pk="hooli").exists(), "both or none"


def test_a_nul_is_refused_in_a_sentence(tenant: Tenant, staff: Client) -> None:
    said = "contains a NUL character"
    member = Client()
    member.force_login(user_create(email="m@acme.test", password="long-enough-7", tenant=tenant))
    anybody = Client()
    for who, url, values in (
        (staff, "/staff/tenants/", {"id": "initech", "name": "a\0b"}),
        (staff, "/staff/tenants/", {"id": "initech", "na\0me": "a"}),
        (member, "/t/acme/keys/", {"name": "a\0b", "scopes": ["inference"]}),
        (member, "/t/acme/projects/", {"slug": "a", "name": ["a", "b\0"]}),
        (anybody, "/accounts/login/", {"login": "a\0b", "password": "x"}),
    ):
        answer = who.post(url, values)
        assert (answer.status_code, said in answer.content.decode()) == (400, True), url
    for who, url in ((staff, "/staff/tenants/"), (member, "/t/acme/adapters/")):
        assert who.get(url, {"search": "a\0"}).status_code == 400, url
    assert staff.get("/staff/tenants/").status_code == 200
    assert not Tenant.objects.filter(pk="initech").exists()


def test_staff_reads_every_log(tenant: Tenant, other_tenant: Tenant, staff: Client) -> None:
    text = staff.get("/staff/audit/").content.decode()
    assert ">acme<" in text
    assert ">globex<" in text
    text = staff.get("/staff/audit/", {"tenant": "globex"}).content.decode()
    assert ">acme<" not in text
    assert staff.get("/staff/audit/", {"since": "soon"}).status_code == 422
    lines = staff.get("/staff/audit/export", {"tenant": "acme"}).getvalue().decode().splitlines()
    assert len(lines) == 1 + AuditRecord.objects.filter(tenant="acme").count()
    assert staff.get("/staff/audit/export", {"form": "xml"}).status_code == 400


def test_a_server_is_added_by_its_address_and_taken_out(base_model: BaseModel, staff: Client) -> None:
    url = "/staff/base-models/tiny-base/"
    form = {"kind": "openai_http", "url": "http://vllm:8000/", "loads_adapters": "on"}
    assert staff.post(f"{url}copies", form)["Location"] == url
    (copy,) = route_table().bases["tiny-base"].copies
    assert (copy.kind, copy.url, copy.loads_adapters) == ("openai_http", "http://vllm:8000", True)
    for wrong in ({"kind": "sagemaker"}, {"kind": "worker"}, {"url": "vllm"}):
        refused = staff.post(f"{url}copies", form | wrong)
        assert (refused.status_code, b"error-copy" in refused.content) == (422, True), wrong
    engine = {"engine": "vllm", "engine_version": "0.32.0", "max_rank": "32", "token": "the-token"}
    assert staff.post(f"{url}copies", form | engine)["Location"] == url
    assert staff.post(f"{url}copies", form | engine | {"token": ""})["Location"] == url
    (copy,) = route_table().bases["tiny-base"].copies
    assert (copy.engine, copy.max_rank) == ("vLLM 0.32.0", 32)
    assert Copy.objects.get().credentials.token == "the-token", "an empty field keeps it"
    page = staff.get(url).content.decode()
    assert "vllm 0.32.0" in page
    assert "the-token" not in page
    for wrong in ({"engine": "sglang"}, {"max_rank": "many"}, {"engine_version": "new"}):
        refused = staff.post(f"{url}copies", form | engine | wrong)
        assert refused.status_code == 422, wrong
        assert 'value="vllm" selected' in refused.content.decode() or "engine" in wrong
    other = base_model_register(name="other", source=base_model.source)
    assert staff.post(f"/staff/base-models/{other.name}/copies", {"remove": copy.id}).status_code == 404
    assert f'data-testid="remove-{copy.id}"' in staff.get(url).content.decode()
    staff.post(f"{url}copies", {"remove": copy.id})
    assert route_table().bases["tiny-base"].copies == ()


def test_an_upload_under_way_is_shown_and_removed(tenant: Tenant, other_tenant: Tenant) -> None:
    member = Client()
    member.force_login(user_create(email="m@acme.test", password="long-enough-7", tenant=tenant))
    own = upload_create(tenant=tenant, name="adapter_model.safetensors", size=2_000_000_000)
    theirs = upload_create(tenant=other_tenant, name="secret.zip", size=10)
    page = member.get("/t/acme/adapters/new").content.decode()
    assert "0 B of 2.0 GB" in page
    assert "secret.zip" not in page
    assert member.post(f"/t/acme/uploads/{theirs.pk}/delete").status_code == 404
    assert member.post(f"/t/acme/uploads/{own.pk}/delete")["Location"] == "/t/acme/adapters/new"
    assert list(Upload.objects.all()) == [theirs]


def test_the_list_of_tenants_is_searched_and_paged_with_their_use(staff: Client) -> None:
    Tenant.objects.bulk_create(
        Tenant(pk=f"t{number:05}", name=f"Robotics {number}", cache_salt="aa") for number in range(2000)
    )
    UsageRollup.objects.create(
        day=dt.datetime.now(dt.UTC).date(),
        tenant="t01999",
        project="p",
        key_id="k",
        adapter="",
        alias="",
        base_model="b",
        backend="worker",
        status="error",
        requests=1234,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=8,
    )
    page = staff.get("/staff/tenants/", {"search": "robotics 1999"}).content.decode()
    assert "t01999" in page
    assert page.count("1,234") == 2, "asked, and failed"
    assert "t01998" not in page
    with CaptureQueriesContext(connection) as few:
        staff.get("/staff/tenants/", {"search": "robotics 1999"})
    with CaptureQueriesContext(connection) as many:
        listed = staff.get("/staff/tenants/").content.decode()
    assert len(few) == len(many)
    assert 'data-testid="page-next"' in listed
    assert listed.count(">Robotics ") == 50
    assert "No tenants found" in staff.get("/staff/tenants/", {"search": "<b>none"}).content.decode()


def test_the_page_shows_what_the_tenant_has_and_how_it_is(staff: Client, tmp_path: Path) -> None:
    base = base_model_register(name="tiny", source=write_checkpoint(tmp_path / "checkpoint"))
    team = make_team("acme", "Acme Robotics")
    make_adapter(team, base, "support-bot")
    use(team, base, "support-bot", days=1)
    tenant_suspend(tenant=team.tenant, reason="unpaid")
    page = staff.get(URL + "?days=7").content.decode()
    for part, text in (
        ("tenant-adapters", "support-bot"),
        ("tenant-keys", "acme backend"),
        ("tenant-members", "dev@acme.example"),
        ("tenant-invoices", "No invoices yet"),
    ):
        section = page[page.index(f'data-testid="{part}"') :]
        assert text in section[: section.index("</section>")]
    assert re.search(r'data-testid="home-tokens">13\.6k', page)
    assert page.index("tenant-resume") < page.index("tenant-stats"), "the remedy stands first"
    assert staff.get("/staff/audit/?tenant=acme").status_code == 200
