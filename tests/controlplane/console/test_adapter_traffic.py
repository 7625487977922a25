"""The adapter page's traffic: by version and alias, out of the sums; times of the newest requests."""

from __future__ import annotations

import datetime as dt
import html
import re
import uuid

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from contracts.adapters.reference import engine_name
from controlplane.catalog.models import BaseModel
from controlplane.metering.models import UsageEventRow, UsageRollup
from controlplane.metering.partitions import partitions_ensure
from tests.controlplane.console.conftest import HOSTILE, Team


def today() -> dt.date:
    return timezone.now().astimezone(dt.UTC).date()


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    UsageRollup.objects.all().delete()
    return client


def engine(version: int, adapter: str = "support-bot", tenant: str = "acme") -> str:
    return engine_name(tenant=tenant, adapter=adapter, version=version, sha256="ab" * 32)


def use(
    adapter: str, requests: int, *, ago: int = 0, status: str = "ok", alias: str = "", tenant: str = "acme"
) -> None:
    UsageRollup.objects.create(
        day=today() - dt.timedelta(days=ago),
        tenant=tenant,
        project="default",
        key_id="k",
        adapter=adapter,
        alias=alias,
        base_model="tiny",
        backend="worker",
        status=status,
        requests=requests,
        prompt_tokens=10 * requests,
        cached_tokens=0,
        completion_tokens=requests,
    )


def event(adapter: str, ttft_ms: float | None) -> None:
    partitions_ensure([today()])
    UsageEventRow.objects.create(
        event_id=uuid.uuid4(),
        day=today(),
        tenant="acme",
        project="default",
        key_id="k",
        request_id=uuid.uuid4().hex,
        attempt=1,
        requested_model="m",
        alias="",
        arm="",
        adapter=adapter,
        base_model="tiny",
        backend="worker",
        endpoint="e",
        status="ok",
        error_code="",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        estimated=False,
        ttft_ms=ttft_ms,
        duration_ms=5,
        started_at=0,
        gateway_id="g",
    )


def part(client: Client, **query: str) -> str:
    answer = client.get(reverse("console:adapter-traffic", args=("acme", "support-bot")), query)
    assert answer.status_code == 200
    return answer.content.decode()


def cells(page: str, row: str) -> list[str]:
    found = re.search(rf'<tr data-testid="traffic-{row}">(.*?)</tr>', page, re.DOTALL)
    assert found, page
    texts = re.findall(r"<td[^>]*>(.*?)</td>", found[1], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>|&nbsp;", " ", text).split()) for text in texts]


def test_versions_are_told_apart_with_their_shares_and_failures(client_of: Client) -> None:
    use(engine(1), 90, alias="prod")
    use(engine(2), 8, alias="prod")
    use(engine(2), 2, alias="prod", status="error")
    use(engine(1), 101, ago=1)
    page = part(client_of)
    assert cells(page, "v1")[:4] == ["191", "95.0 %", "0", "2,101"]
    assert cells(page, "v2")[:4] == ["10", "5.0 %", "2 (20.0 %)", "110"]
    assert page.count("<rect") == 3
    aliases = page[page.index("traffic-aliases") :]
    assert aliases.index(">support-bot<") < aliases.index(">support-bot@prod<"), (
        "the more requests, the first"
    )
    # Of errors alone one day of one version has a bar.
    assert part(client_of, measure="errors").count("<rect") == 1


def test_neither_others_nor_what_was_before_counts(client_of: Client, globex: Team) -> None:
    use(engine(1), 1, ago=7)
    use(engine(1, adapter="support-bot-2"), 5)
    use(engine(1, tenant="globex"), 5, tenant="globex")
    assert "traffic-none" in part(client_of)
    assert cells(part(client_of, days="30"), "v1")[0] == "1"
    assert "traffic-none" in part(client_of, days="1000", measure="nonsense")


def test_times_are_those_of_the_newest_requests(client_of: Client) -> None:
    use(engine(1), 3)
    assert cells(part(client_of), "v1")[4:] == ["–", "–"]
    for ttft_ms in (10.0, 20.0, 400.0, None):
        event(engine(1), ttft_ms)
    event(engine(1, adapter="another"), 9000.0)
    assert cells(part(client_of), "v1")[4:] == ["20 ms", "400 ms"]


def test_more_use_costs_no_more_queries(
    client_of: Client, base: BaseModel, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for ago in range(30):
        for version in range(1, 6):
            use(engine(version), 1 + version, ago=ago)
    with django_assert_max_num_queries(14):
        page = part(client_of, days="30")
    assert page.count("<rect") == 150
    # The busiest three have a colour each, all others one.
    assert set(re.findall(r'<rect class="bar-(\d)"', page)) == {"0", "1", "2", "3"}


def test_an_alias_in_the_sums_never_becomes_markup(client_of: Client) -> None:
    use(engine(1), 1, alias=HOSTILE)
    page = part(client_of)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_page_asks_for_its_traffic(client_of: Client) -> None:
    page = client_of.get(reverse("console:adapter", args=("acme", "support-bot"))).content.decode()
    assert f'hx-get="{reverse("console:adapter-traffic", args=("acme", "support-bot"))}"' in page
    assert "from langchain_openai import ChatOpenAI" in page


def test_the_list_tells_each_adapters_share_of_all_requests(client_of: Client, globex: Team) -> None:
    """Shares are of the last seven days, base models included. The list loads them after the page."""
    use(engine(1), 60)
    use(engine(2), 15, ago=6)
    use(engine(1, adapter="tone-of-voice"), 5)
    use("", 20)
    use(engine(1), 1_000, ago=7)
    use(engine(1, tenant="globex"), 1_000, tenant="globex")
    page = client_of.get(reverse("console:adapters", args=("acme",))).content.decode()
    asked = re.search(r'hx-get="([^"]*/adapters/shares[^"]*)"', page)
    assert asked is not None
    told = client_of.get(html.unescape(asked[1])).content.decode()
    spans = re.findall(r'<span id="share-([^"]+)"[^>]*>([^<]*)<', told)
    assert spans == [("support-bot", "75 %"), ("tone-of-voice", "5.0 %")]
    assert 'title="75 requests in 7 days"' in told
    assert all(f'id="share-{name}"' in page for name, _share in spans), "the place that it is put in"
    hostile = client_of.get(reverse("console:adapter-shares", args=("acme",)), {"name": ["<script>", "new"]})
    assert "<script>" not in hostile.content.decode()
    assert hostile.content.decode().count(">–<") == 2
