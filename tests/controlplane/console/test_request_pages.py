"""The pages of single requests: what they show, to whom, and what they say where there is nothing."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from contracts.adapters.reference import engine_name
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import Role
from tests.controlplane.console.conftest import HOSTILE, Team
from tests.controlplane.metering.event_log import logged

BOT = engine_name(tenant="acme", adapter="support-bot", version=1, sha256="ab" * 32)


@pytest.fixture
def dev(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def text_of(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status
    return answer.content.decode()


def test_nothing_yet_and_nothing_that_fits_are_told_apart(dev: Client) -> None:
    assert "No requests yet" in text_of(dev, "/t/acme/requests/")
    assert "No requests found" in text_of(dev, "/t/acme/requests/?status=error")
    assert "are not stored" in text_of(dev, "/t/acme/requests/")


@pytest.mark.usefixtures("priced")
def test_a_line_and_its_page_say_what_a_request_took(dev: Client, acme: Team) -> None:
    now = timezone.now()
    row = logged(
        "acme", now, adapter=BOT, key_id=acme.key.pk, requested_model="support-bot@prod", alias="prod"
    )
    logged("acme", now, 1, request_id=row.request_id, attempt=1, status="error", error_code="backend_timeout")
    page = text_of(dev, "/t/acme/requests/")
    for shown in ("support-bot@prod", "support-bot v1", "acme backend", "87 ms", "1.24 s", "$0.00001965"):
        assert shown in page, shown
    page = text_of(dev, f"/t/acme/requests/{row.request_id}/")
    for shown in ("Attempt 1 of 2", "backend_timeout", "acme backend", "/adapters/support-bot/v1/"):
        assert shown in page, shown


def test_pages_go_on_by_the_last_event_and_keep_the_filter(
    dev: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    now = timezone.now()
    for number in range(60):
        logged("acme", now - dt.timedelta(minutes=number), number, project="chat")
    page = text_of(dev, "/t/acme/requests/?project=chat")
    assert page.count('data-testid="request-') == 50
    (older,) = [part.split('"')[0] for part in page.split('href="?')[1:] if "before=" in part.split('"')[0]]
    with django_assert_max_num_queries(14):
        page = text_of(dev, "/t/acme/requests/?" + older.replace("&amp;", "&"))
    assert page.count('data-testid="request-') == 10
    assert 'value="chat"' in page
    assert 'data-testid="requests-newest"' in page


def test_another_tenants_requests_are_not_there(dev: Client, globex: Team) -> None:
    row = logged("globex", timezone.now(), key_id=globex.key.pk)
    assert row.request_id not in text_of(dev, f"/t/acme/requests/?key={globex.key.pk}")
    text_of(dev, f"/t/acme/requests/{row.request_id}/", 404)
    text_of(dev, f"/t/globex/requests/{row.request_id}/", 404)


def test_a_name_of_another_tenants_key_is_not_told(dev: Client, globex: Team) -> None:
    logged("acme", timezone.now(), key_id=globex.key.pk)
    assert "globex backend" not in text_of(dev, "/t/acme/requests/")


def test_a_viewer_reads_them_without_links_to_what_it_may_not(dev: Client, acme: Team) -> None:
    row = logged("acme", timezone.now(), key_id=acme.key.pk)
    Membership.objects.filter(user=acme.user).update(role=Role.VIEWER)
    page = text_of(dev, f"/t/acme/requests/{row.request_id}/")
    assert "acme backend" in page
    assert reverse("console:key", args=("acme", acme.key.pk)) not in page


def test_hostile_names_stay_text_and_wrong_filters_say_so(dev: Client) -> None:
    row = logged("acme", timezone.now(), requested_model=HOSTILE[:200], error_code="<b>x</b>", status="error")
    for path in ("/t/acme/requests/", f"/t/acme/requests/{row.request_id}/"):
        page = text_of(dev, path)
        assert "<script>alert" not in page
        assert "<b>x</b>" not in page
        assert "&lt;script&gt;" in page
    assert "YYYY-MM-DD" in text_of(dev, "/t/acme/requests/?start=soon&end=later", 422)
    assert "status must be" in text_of(dev, "/t/acme/requests/?status=x", 422)
    text_of(dev, "/t/acme/requests/?before=x", 422)
