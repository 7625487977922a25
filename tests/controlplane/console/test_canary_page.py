"""An alias's canary on its adapter's page: the share as a form sends it, the way back, what arms answered."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from controlplane.adapters.aliases import alias_move, alias_split
from controlplane.adapters.models import Adapter, AdapterVersion, AliasChange
from controlplane.canaries.services import rollout_start
from controlplane.catalog.models import BaseModel
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from tests.controlplane.adapters.test_splits import ready, route
from tests.controlplane.console.form_tags import form_tag, send
from tests.controlplane.metering.event_log import logged

pytestmark = pytest.mark.django_db
URL = "/t/acme/adapters/pirate/"
CANARY = f"{URL}aliases/prod/canary"
ARMS = f"{URL}aliases/prod/arms"
ROLLBACK = f"{URL}aliases/prod/rollback"


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    adapter = ready(tenant, base_model)
    alias_move(adapter=adapter, name="prod", number=1)
    return adapter


def person(tenant: Tenant, role: str) -> Client:
    client = Client()
    client.force_login(
        user_create(email=f"{role}@acme.test", password="long-enough-7", tenant=tenant, role=role)
    )
    return client


@pytest.fixture
def page(tenant: Tenant) -> Client:
    return person(tenant, "engineer")


def share(page: Client, version: object, percent: object) -> tuple[int, str]:
    values = {"version": str(version), "percent": str(percent)}
    answer = send(page, URL, values, form="canary-prod", to=CANARY)
    return answer.status_code, answer.content.decode()


def split_text(text: str) -> str:
    found = re.search(r'data-testid="canary-told-prod">(.*?)</output>', text)
    assert found
    return found[1]


def answered(adapter: Adapter, number: int, at: dt.datetime, serial: int, **values: Any) -> None:
    version = AdapterVersion.objects.select_related("adapter").get(adapter=adapter, number=number)
    given = {"adapter": version.engine_name, "alias": "prod", "arm": f"v{number}"} | values
    logged("acme", at, serial, **given)


def test_a_share_is_set_moved_and_ended(adapter: Adapter, page: Client) -> None:
    assert split_text(page.get(URL).content.decode()) == "v1: 100 % · v3: 0 %"
    assert share(page, 3, 10)[0] == 302
    assert route().splits == {"prod": ((1, 90), (3, 10))}
    assert split_text(page.get(URL).content.decode()) == "v1: 90 % · v3: 10 %"
    assert AuditRecord.objects.filter(tenant="acme", action="alias.split").count() == 1
    assert share(page, 3, " 35 % ")[0] == 302
    assert route().splits == {"prod": ((1, 65), (3, 35))}
    assert share(page, 2, 5)[0] == 302
    assert route().splits == {"prod": ((1, 95), (2, 5))}, "another version is the canary instead"
    assert share(page, 2, 0)[0] == 302
    assert (route().aliases, route().splits) == ({"prod": 1}, {})
    assert share(page, 3, 100)[0] == 302
    assert (route().aliases, route().splits) == ({"prod": 3}, {})


@pytest.mark.parametrize(
    ("version", "percent", "said"),
    [
        ("3", "101", "from 0 to 100"),
        ("3", "-1", "from 0 to 100"),
        ("3", "1.5", "from 0 to 100"),
        ("3", "", "from 0 to 100"),
        ("3", "٣", "from 0 to 100"),
        ("1", "10", "other than v1"),
        ("", "10", "other than v1"),
        ("4", "10", "is refused, not ready"),
        ("77", "10", "no version 77"),
    ],
)
def test_what_cannot_be_is_said_beside_the_slider(
    adapter: Adapter, page: Client, version: str, percent: str, said: str
) -> None:
    status, text = share(page, version, percent)
    assert (status, 'id="error-canary-prod"' in text, said in text) == (422, True, True)
    assert f'required value="{percent}" aria-label' in text, "what was entered stays"
    assert (route().aliases, route().splits) == ({"prod": 1}, {})


def test_who_was_slower_is_told_what_is_in_force(adapter: Adapter, page: Client) -> None:
    early = form_tag(page, URL, "canary-prod")
    alias_split(adapter=adapter, name="prod", arms=[(1, 80), (2, 20)])
    late = page.post(CANARY, {"version": "3", "percent": "50", "seen": early})
    text = late.content.decode()
    assert (late.status_code, "Current value: v1 80 %; v2 20 %; stays v1" in text) == (422, True)
    assert 'value="3" selected' in text
    assert route().splits == {"prod": ((1, 80), (2, 20))}
    assert page.post(CANARY, {"version": "3", "percent": "50"}).status_code == 422, "a form without the tag"
    assert share(page, 3, 50)[0] == 302, "who has looked again may"


def test_what_a_slider_cannot_say_has_none(adapter: Adapter, page: Client) -> None:
    early = form_tag(page, URL, "canary-prod")
    alias_split(adapter=adapter, name="prod", arms=[(1, 50), (2, 30), (3, 20)])
    late = page.post(CANARY, {"version": "3", "percent": "50", "seen": early})
    text = late.content.decode()
    assert (late.status_code, "Current value: v1 50 %; v2 30 %; v3 20 %" in text) == (422, True)
    assert "data-share-slider" not in text
    assert "split among more than two versions" in text
    AdapterVersion.objects.filter(number__gt=1).delete()
    alias_move(adapter=adapter, name="prod", number=1)
    assert "data-share-slider" not in page.get(URL).content.decode(), "there is no other version"


def test_a_canary_that_decides_by_itself_is_told_of(adapter: Adapter, page: Client) -> None:
    assert "Changing the split manually ends it" not in page.get(URL).content.decode()
    rollout_start(adapter=adapter, alias="prod", version=2)
    assert "Changing the split manually ends it" in page.get(URL).content.decode()


def test_one_click_goes_back_and_stays_on_the_page(adapter: Adapter, page: Client) -> None:
    assert "rollback-prod" not in page.get(URL).content.decode(), "there was nothing before"
    share(page, 3, 10)
    assert "Roll back to v1" in page.get(URL).content.decode()
    newest = {"newest": AliasChange.objects.latest("pk").pk, "from": "adapter"}
    assert page.post(ROLLBACK, newest)["Location"] == URL
    assert (route().aliases, route().splits) == ({"prod": 1}, {})
    page.post(ROLLBACK, newest)
    assert "was changed meanwhile" in page.get(URL).content.decode()
    assert "Roll back to v1: 90 %, v3: 10 %" in page.get(URL).content.decode()


def test_each_arm_tells_what_it_answered_since_the_shares_were_set(adapter: Adapter, page: Client) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (3, 10)])
    AliasChange.objects.update(created_at=timezone.now() - dt.timedelta(minutes=20))
    now = timezone.now() - dt.timedelta(seconds=1)
    for serial in range(3):
        answered(adapter, 1, now, serial, ttft_ms=100.0)
    answered(adapter, 3, now, 7, ttft_ms=300.0)
    answered(adapter, 3, now, 8, status="error")
    # Before the split, by another alias, and without one.
    answered(adapter, 3, now - dt.timedelta(minutes=30), 9)
    answered(adapter, 3, now, 10, alias="other")
    answered(adapter, 3, now, 11, alias="", arm="")
    text = page.get(ARMS).content.decode()
    arms = re.findall(r'data-testid="arm-prod-(v\d)">(.*?)</li>', text, re.DOTALL)
    found = {name: re.sub(r"<[^>]+>|&nbsp;|\s+", " ", arm) for name, arm in arms}
    assert list(found) == ["v1", "v3"]
    for name, parts in {
        "v1": ("90 %", "3 requests, 0 failed", "p50 100 ms, p95 100 ms"),
        "v3": ("10 %", "2 requests, 1 failed", "p50 300 ms, p95 300 ms"),
    }.items():
        for part in parts:
            assert part in " ".join(found[name].split()), (name, part)
    assert 'max="5" value="2"' in text
    assert 'hx-trigger="every 5s"' in text


def test_without_a_split_the_page_is_asked_for_anew(adapter: Adapter, page: Client) -> None:
    answer = page.get(ARMS)
    assert answer["HX-Refresh"] == "true"
    assert "every 5s" not in answer.content.decode()
    assert ARMS not in page.get(URL).content.decode()
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (3, 10)])
    assert f'hx-get="{ARMS}"' in page.get(URL).content.decode()


def test_who_may_only_look_sees_shares_and_no_slider(adapter: Adapter, tenant: Tenant, page: Client) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (3, 10)])
    viewer = person(tenant, "viewer")
    text = viewer.get(URL).content.decode()
    assert ("canary-prod" in text, "rollback-prod" in text) == (False, False)
    assert ARMS in text
    assert viewer.post(CANARY, {"version": "3", "percent": "50"}).status_code == 403


def test_many_aliases_cost_no_more_queries(
    adapter: Adapter, page: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    page.get(URL)
    for number in range(30):
        alias_split(adapter=adapter, name=f"stage-{number}", arms=[(1, 90), (3, 10)])
    with django_assert_max_num_queries(30):
        text = page.get(URL).content.decode()
    assert text.count("data-share-slider") == 31
