"""Shares of callers and fallbacks, set by forms as browsers send them."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.adapters.aliases import alias_move, alias_split
from controlplane.adapters.models import Adapter, AdapterVersion, AliasChange
from controlplane.canaries.decisions import rollouts_decide
from controlplane.canaries.models import Rollout
from controlplane.canaries.services import rollout_start
from controlplane.catalog.models import BaseModel
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from tests.controlplane.adapters.test_splits import ready, route
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
URL = "/t/acme/adapters/pirate/"
ALIAS = f"{URL}aliases/prod/"
SPLIT = f"{URL}aliases/prod/split"


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    adapter = ready(tenant, base_model)
    alias_move(adapter=adapter, name="prod", number=1)
    return adapter


@pytest.fixture
def page(tenant: Tenant) -> Client:
    client = Client()
    client.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    return client


def split(page: Client, **values: str) -> tuple[int, str]:
    named = {name.replace("v", "percent-"): text for name, text in values.items()}
    answer = send(page, ALIAS, named, form="split", to=SPLIT)
    return answer.status_code, answer.content.decode()


def test_shares_are_set_shown_and_ended(adapter: Adapter, page: Client) -> None:
    assert 'maxlength="5" value="100"' in page.get(ALIAS).content.decode()
    assert split(page, v1="90", v3="10 %", v2="", stays="1", reason="try 3")[0] == 302
    assert (route().aliases, route().splits) == ({"prod": 1}, {"prod": ((1, 90), (3, 10))})
    change = AliasChange.objects.latest("pk")
    assert (change.reason, change.by) == ("try 3", "a@acme.test")
    record = AuditRecord.objects.get(tenant="acme", action="alias.split")
    assert record.after == {"arms": [[1, 90], [3, 10]], "reason": "try 3"}
    assert "v3: 10&nbsp;%" in page.get(ALIAS).content.decode()
    assert split(page, v1="1", v3="99", stays="3")[0] == 302
    assert route().splits == {"prod": ((3, 99), (1, 1))}, "the version that stays comes first"
    assert split(page, v1="", v3="100", stays="3")[0] == 302
    assert (route().aliases, route().splits) == ({"prod": 3}, {})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"v1": "90", "v2": "9", "stays": "1"}, "add up to 99"),
        ({"v1": "99", "stays": "1"}, "2 to 10 arms"),
        ({"v1": "half", "v2": "50", "stays": "1"}, "whole numbers"),
        ({"v1": "٣", "v2": "97", "stays": "1"}, "whole numbers"),
        ({"v1": "-5", "v2": "105", "stays": "1"}, "whole numbers"),
        ({"v1": "50", "v2": "50", "stays": "3"}, "version 3 has none"),
        ({"v1": "50", "v4": "50", "stays": "1"}, "is refused, not ready"),
        ({"v1": "50", "v77": "50", "stays": "1"}, "no version 77"),
        ({"v1": "", "stays": "1"}, "at least one version"),
    ],
)
def test_what_cannot_be_is_said_and_what_was_entered_stays(
    adapter: Adapter, page: Client, values: dict[str, str], said: str
) -> None:
    status, text = split(page, **values, reason="why not")
    assert (status, 'id="error-split"' in text, said in text) == (422, True, True)
    assert f'value="{values["v1"]}"' in text
    assert 'value="why not"' in text
    assert (route().aliases, route().splits) == ({"prod": 1}, {})


def test_who_was_slower_is_told_what_is_in_force(adapter: Adapter, page: Client) -> None:
    early = form_tag(page, ALIAS, "split")
    alias_move(adapter=adapter, name="prod", number=2)
    late = page.post(SPLIT, {"percent-1": "50", "percent-3": "50", "stays": "1", "seen": early})
    assert (late.status_code, "Current value: v2 100 %" in late.content.decode()) == (422, True)
    assert route().aliases == {"prod": 2}
    assert page.post(SPLIT, {"percent-1": "100", "stays": "1"}).status_code == 422, "a form without the tag"
    assert split(page, v1="50", v3="50", stays="1")[0] == 302, "who has looked again may"


def test_who_stays_counts_as_a_change(adapter: Adapter, page: Client) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 50), (2, 50)])
    early = form_tag(page, ALIAS, "split")
    alias_split(adapter=adapter, name="prod", arms=[(2, 50), (1, 50)])
    late = page.post(SPLIT, {"percent-1": "60", "percent-2": "40", "stays": "1", "seen": early})
    assert (late.status_code, "stays v2" in late.content.decode()) == (422, True)
    assert route().splits == {"prod": ((2, 50), (1, 50))}


def test_all_to_one_version_needs_no_other_choice(adapter: Adapter, page: Client) -> None:
    assert split(page, v1="", v2="100", stays="1")[0] == 302
    assert (route().aliases, route().splits) == ({"prod": 2}, {})


def test_a_refused_form_shows_every_share_that_was_sent(adapter: Adapter, page: Client) -> None:
    # While the form was open more versions became ready than a page offers.
    AdapterVersion.objects.bulk_create(
        AdapterVersion(adapter=adapter, number=n, status="ready", sha256="9" * 64, uri="file:///a/", rank=2)
        for n in range(5, 40)
    )
    status, text = split(page, v1="50", v7="41", v30="", stays="7")
    assert status == 422
    assert 'value="41" autocomplete="off" aria-label="Percent for version 7"' in text
    assert 'value="7" checked' in text


def test_shares_set_by_hand_end_a_canary(adapter: Adapter, page: Client) -> None:
    rollout_start(adapter=adapter, alias="prod", version=2)
    assert "Changing the split manually ends it" in page.get(ALIAS).content.decode()
    assert split(page, v1="50", v2="", v3="50", stays="1")[0] == 302
    rollouts_decide()
    assert Rollout.objects.get().status == Rollout.Status.SUPERSEDED


def test_many_versions_leave_those_that_the_alias_means(adapter: Adapter, page: Client) -> None:
    AdapterVersion.objects.bulk_create(
        AdapterVersion(adapter=adapter, number=n, status="ready", sha256="9" * 64, uri="file:///a/", rank=2)
        for n in range(5, 40)
    )
    text = page.get(ALIAS).content.decode()
    shown = [n for n in range(1, 40) if f'name="percent-{n}"' in text]
    assert shown == [1, *range(30, 40)]


def test_fallbacks_of_an_alias_and_of_the_bare_name(adapter: Adapter, page: Client) -> None:
    models = ["pirate@v2", "", " tiny-base ", ""]
    sent = send(page, ALIAS, {"models": models}, form="fallback", to=f"{URL}aliases/prod/fallback")
    assert sent.status_code == 302
    assert route().fallbacks == {"prod": ("pirate@v2", "tiny-base")}
    sent = send(page, URL, {"models": ["tiny-base"]}, form="fallback", to=f"{URL}fallback")
    assert sent.status_code == 302
    assert route().fallbacks == {"": ("tiny-base",), "prod": ("pirate@v2", "tiny-base")}
    text = page.get(ALIAS).content.decode()
    assert 'value="pirate@v2"' in text
    assert '<option value="tiny-base">' in text
    assert AuditRecord.objects.filter(tenant="acme", action="fallback.set").count() == 2
    send(page, ALIAS, {"models": ["", ""]}, form="fallback", to=f"{URL}aliases/prod/fallback")
    assert route().fallbacks == {"": ("tiny-base",)}


@pytest.mark.parametrize("own", [f"{URL}aliases/prod/", URL])
def test_a_refused_fallback_stays_in_the_form(
    adapter: Adapter, page: Client, other_tenant: Tenant, base_model: BaseModel, own: str
) -> None:
    ready(other_tenant, base_model, "theirs")
    to = f"{own}fallback"
    for model in ("theirs", "nothing-of-ours", "pirate" if own == URL else "pirate@prod"):
        answer = send(page, own, {"models": [model]}, form="fallback", to=to)
        text = answer.content.decode()
        assert (answer.status_code, 'id="error-models"' in text, f'value="{model}"' in text) == (
            422,
            True,
            True,
        ), model
    early = form_tag(page, own, "fallback")
    assert page.post(to, {"models": ["tiny-base"], "seen": early}).status_code == 302
    late = page.post(to, {"models": ["pirate@v3"], "seen": early})
    assert "Current value: models tiny-base" in late.content.decode()
    assert set(route().fallbacks.values()) == {("tiny-base",)}


def test_who_may_only_look_sees_no_form(adapter: Adapter, page: Client, tenant: Tenant) -> None:
    send(page, URL, {"models": ["tiny-base"]}, form="fallback", to=f"{URL}fallback")
    viewer = Client()
    viewer.force_login(
        user_create(email="v@acme.test", password="long-enough-7", tenant=tenant, role="viewer")
    )
    for url in (URL, ALIAS):
        text = viewer.get(url).content.decode()
        assert ("fallback-submit" in text, "split-submit" in text) == (False, False)
    assert "tiny-base" in viewer.get(URL).content.decode()


def test_a_deleted_version_comes_back(adapter: Adapter, page: Client) -> None:
    page.post(f"{URL}v3/delete")
    assert set(route().versions) == {1, 2}
    assert 'data-testid="restore-v3"' in page.get(URL).content.decode()
    assert page.post(f"{URL}v3/restore")["Location"] == f"{URL}v3/"
    assert set(route().versions) == {1, 2, 3}
    assert 'data-testid="restore-v3"' not in page.get(URL).content.decode()
    assert page.post(f"{URL}v3/restore").status_code == 404
