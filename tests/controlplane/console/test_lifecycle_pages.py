"""Aliases, canaries, versions and deleted adapters on their pages, by forms as browsers send them."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.lifecycle import adapter_delete
from controlplane.adapters.models import Adapter, AdapterVersion, AliasChange
from controlplane.canaries.decisions import rollouts_decide
from controlplane.canaries.models import Rollout
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.adapters.test_splits import ready, route
from tests.controlplane.canaries.test_rollouts import use
from tests.controlplane.console.form_tags import form_tag, send

pytestmark = pytest.mark.django_db
URL = "/t/acme/adapters/pirate/"


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


def test_one_click_rolls_back_unless_somebody_was_faster(adapter: Adapter, page: Client) -> None:
    alias_move(adapter=adapter, name="prod", number=2)
    text = page.get(f"{URL}aliases/prod/").content.decode()
    assert "Roll back to v1" in text
    newest = AliasChange.objects.order_by("-pk")[0].pk
    assert f'name="newest" value="{newest}"' in text
    page.post(f"{URL}aliases/prod/rollback", {"newest": newest})
    assert route().aliases == {"prod": 1}
    late = page.post(f"{URL}aliases/prod/rollback", {"newest": newest}, follow=True).content.decode()
    assert "was changed meanwhile" in late
    assert route().aliases == {"prod": 1}
    assert "a@acme.test" in late
    first = AliasChange.objects.order_by("pk")[1].pk
    page.post(f"{URL}aliases/prod/rollback", {"to": first})
    assert route().aliases == {"prod": 2}
    page.post(f"{URL}aliases/prod/delete")
    assert "Roll back to v2" in page.get(f"{URL}aliases/prod/").content.decode()
    assert page.get(f"{URL}aliases/never/").status_code == 404


def test_a_canary_is_started_watched_and_aborted(adapter: Adapter, page: Client) -> None:
    form = {"version": "2", "steps": "10, 50", "hold": "1", "requests": "20"}
    for wrong in ({"steps": "50, 10"}, {"steps": "x"}, {"hold": ""}, {"version": "9"}, {"requests": "1"}):
        answer = page.post(f"{URL}aliases/prod/rollouts", form | wrong)
        assert (answer.status_code, "error-start" in answer.content.decode()) == (422, True), wrong
    assert page.post(f"{URL}aliases/prod/rollouts", form).status_code == 302
    rollout = Rollout.objects.get()
    assert (rollout.steps, rollout.hold_seconds, rollout.min_requests) == ([10, 50], 60, 20)
    use(adapter, 1, 40)
    use(adapter, 2, 30)
    rollouts_decide()
    text = page.get(f"{URL}aliases/prod/").content.decode()
    assert f'hx-get="{URL}aliases/prod/rollouts/{rollout.pk}"' in text
    status = page.get(f"{URL}aliases/prod/rollouts/{rollout.pk}")
    assert "HX-Refresh" not in status
    assert ">30<" in status.content.decode()
    page.post(f"{URL}aliases/prod/rollouts/{rollout.pk}/pause")
    assert "Resume" in page.get(f"{URL}aliases/prod/").content.decode()
    page.post(f"{URL}aliases/prod/rollouts/{rollout.pk}/abort")
    ended = page.get(f"{URL}aliases/prod/rollouts/{rollout.pk}")
    assert ended["HX-Refresh"] == "true"
    assert "hx-get" not in ended.content.decode()
    assert 'data-testid="ended-aborted"' in page.get(f"{URL}aliases/prod/").content.decode()
    assert (route().aliases, route().splits) == ({"prod": 1}, {})
    assert page.post(f"{URL}aliases/prod/rollouts/{rollout.pk}/explode").status_code == 404


def test_a_version_shows_its_figures_and_takes_its_lineage(adapter: Adapter, page: Client) -> None:
    smoke = {
        "copy": "copy-1",
        "tokens": 40,
        "base_mean_logprob": -3.0,
        "adapter_mean_logprob": -3.25,
        "mean_difference": 0.5,
        "max_difference": 2.0,
        "noise": 0.0,
        "base_text": "<b>plain</b>",
        "adapter_text": "arr",
    }
    steps = [
        {"name": "values", "title": "Finite values", "status": "warned", "detail": "every lora_B is zero"}
    ]
    AdapterVersion.objects.filter(number=2).update(smoke=smoke, steps=steps)
    text = page.get(f"{URL}v2/").content.decode()
    assert "3.25" in text
    assert "&lt;b&gt;plain" in text
    assert "every lora_B is zero" in text
    assert "every lora_B is zero" in page.get(URL).content.decode()
    assert "Ends immediately." not in text
    AdapterVersion.objects.filter(number=2).update(smoke=smoke | {"adapter_text": "\n"})
    assert "Ends immediately." in page.get(f"{URL}v2/").content.decode()
    form = {"dataset": "pirates-v2", "run_url": "javascript:x", "base_sha256": "", "notes": ""}
    lineage = {"form": "lineage-form", "to": f"{URL}v2/lineage"}
    answer = send(page, f"{URL}v2/", form, **lineage)
    assert (answer.status_code, b"error-run_url" in answer.content) == (422, True)
    early = form_tag(page, f"{URL}v2/", "lineage-form")
    send(page, f"{URL}v2/", form | {"run_url": "https://runs.test/1"}, **lineage)
    assert AdapterVersion.objects.get(number=2).dataset == "pirates-v2"
    late = page.post(f"{URL}v2/lineage", {"notes": "mine", "seen": early}).content.decode()
    assert "Current value: notes" not in late
    assert "dataset pirates-v2" in late
    assert AdapterVersion.objects.get(number=2).notes == ""
    refused = page.post(f"{URL}v1/delete", follow=True).content.decode()
    assert "is the target of pirate@prod" in refused
    page.post(f"{URL}v2/delete")
    assert set(route().versions) == {1, 3}


@pytest.mark.parametrize(("status", "said"), [("warned", "warning"), ("skipped", "not checked")])
def test_what_validation_remarked_stays_beside_ready(
    status: str, said: str, adapter: Adapter, page: Client
) -> None:
    def badges(path: str) -> list[str]:
        return re.findall(
            r'data-testid="remark-smoke">.*?</svg>([^<]*)<', page.get(path).content.decode(), re.S
        )

    step = {"name": "smoke", "title": "Generation", "status": status, "detail": "not run, because"}
    AdapterVersion.objects.filter(number=4).delete()
    done = {"name": "files", "title": "Files", "status": "done", "detail": "2 files"}
    AdapterVersion.objects.filter(number=3).update(steps=[done, step])
    assert badges(f"{URL}v3/") == badges("/t/acme/adapters/") == [said]
    # Of the newest in the head, and in its row.
    assert badges(URL) == [said, said]
    text = page.get(URL).content.decode()
    assert "Generation: not run, because" in text
    assert "2 files" not in text
    assert "notice-warn" in page.get(f"{URL}v3/").content.decode()
    assert "notice-warn" not in page.get(f"{URL}v2/").content.decode()


def test_who_may_write_deletes_a_version_from_the_adapters_page_and_brings_it_back(
    tenant: Tenant, adapter: Adapter, page: Client
) -> None:
    text = page.get(URL).content.decode()
    dialog = text.partition('<dialog class="dialog" id="delete-v2"')[2].partition("</dialog>")[0]
    assert f'action="{URL}v2/delete"' in dialog
    assert 'data-dialog-open="delete-v2"' in text
    reader = Client()
    user = user_create(email="r@acme.test", password="long-enough-7", tenant=tenant, role=Role.VIEWER)
    reader.force_login(user)
    assert "delete-v2" not in reader.get(URL).content.decode()
    assert reader.post(f"{URL}v2/delete").status_code == 403
    page.post(f"{URL}v2/delete")
    assert set(route().versions) == {1, 3}
    page.post(f"{URL}v2/restore")
    assert set(route().versions) == {1, 2, 3}


def test_readers_see_a_versions_whole_lineage(tenant: Tenant, adapter: Adapter) -> None:
    reader = Client()
    user = user_create(email="r@acme.test", password="long-enough-7", tenant=tenant, role=Role.VIEWER)
    reader.force_login(user)
    AdapterVersion.objects.filter(number=1).update(notes="speaks of ships", base_sha256="ab" * 32)
    text = reader.get(f"{URL}v1/").content.decode()
    assert "speaks of ships" in text
    assert "ab" * 32 in text


def test_labels_and_the_way_back_of_a_deleted_adapter(adapter: Adapter, page: Client) -> None:
    early, about = form_tag(page, URL, "about-form"), {"form": "about-form", "to": f"{URL}update"}
    send(page, URL, {"labels": "team=support, env=prod", "notes": "swears"}, **about)
    late = page.post(f"{URL}update", {"labels": "", "notes": "polite", "seen": early})
    assert (late.status_code, "labels env=prod, team=support; notes swears" in late.content.decode()) == (
        422,
        True,
    )
    adapter.refresh_from_db()
    assert adapter.labels == {"team": "support", "env": "prod"}
    assert send(page, URL, {"labels": "team", "notes": ""}, **about).status_code == 422
    assert 'value="env=prod, team=support"' in page.get(URL).content.decode()
    adapter_delete(adapter=adapter)
    assert page.get(URL).status_code == 404
    assert 'data-testid="restore-pirate"' in page.get("/t/acme/adapters/").content.decode()
    page.post(f"{URL}restore")
    assert page.get(URL).status_code == 200
    page.post(f"{URL}delete")
    page.post(f"{URL}purge")
    assert not Adapter.objects.exists()
    assert 'data-testid="deleted"' not in page.get("/t/acme/adapters/").content.decode()
