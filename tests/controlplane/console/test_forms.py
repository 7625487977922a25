"""The console's forms: registering, aliases, keys, the playground's key, the usage range."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import adapter_get
from controlplane.adapters.validation import version_validate
from controlplane.tenants.models import ApiKey
from controlplane.tenants.selectors import api_key_verify
from tests.controlplane.console.conftest import Team, make_adapter_files


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def register(client: Client, files: list[Path], **fields: str) -> Any:
    data = {"name": "fresh", "base_model": "tiny", "source": "files"} | fields
    uploads = [SimpleUploadedFile(path.name, path.read_bytes()) for path in files]
    return client.post("/t/acme/adapters/new", {**data, "files": uploads})


def test_registering_files_leads_to_the_adapters_page(client_of: Client, tmp_path: Path) -> None:
    response = register(client_of, make_adapter_files(tmp_path / "a"))
    assert response["Location"] == "/t/acme/adapters/fresh/"
    page = client_of.get("/t/acme/adapters/fresh/").content.decode()
    assert 'hx-trigger="every 1s"' in page


def test_a_settled_version_is_asked_for_no_more(client_of: Client, acme: Team, tmp_path: Path) -> None:
    register(client_of, make_adapter_files(tmp_path / "a"))
    url = "/t/acme/adapters/fresh/v1/status"
    before = client_of.get(url)
    assert "HX-Refresh" not in before
    version_validate(version_id=AdapterVersion.objects.get(adapter__name="fresh").pk)
    after = client_of.get(url)
    assert after["HX-Refresh"] == "true"
    assert "hx-trigger" not in after.content.decode()
    assert 'hx-trigger="every' not in client_of.get("/t/acme/adapters/").content.decode()
    assert "fresh" in client_of.get("/t/acme/playground/").content.decode()


def test_the_whole_lineage_is_told_with_the_registration(client_of: Client, tmp_path: Path) -> None:
    lineage = {"dataset": "d", "run_url": "https://runs.test/1", "base_sha256": "ab" * 32, "notes": "mine"}
    shown = client_of.get("/t/acme/adapters/new").content.decode()
    assert [name for name in lineage if f'name="{name}"' not in shown] == []
    files = make_adapter_files(tmp_path / "a")
    refused = register(client_of, files, **lineage | {"base_sha256": "AB"})
    assert (refused.status_code, 'value="mine"' in refused.content.decode()) == (422, True)
    assert "64 lower-case hexadecimal digits" in refused.content.decode()
    register(client_of, files, **lineage)
    assert AdapterVersion.objects.values(*lineage).get(adapter__name="fresh") == lineage


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "Not A Slug"}, "lower-case letters"),
        ({"name": "tiny"}, "is a base model"),
        ({"base_model": ""}, "base model"),
        ({"base_model": "gone"}, "does not exist; existing base models"),
        ({"source": "uri", "uri": "file:///etc/"}, "not in a folder open for imports of adapters"),
    ],
)
def test_a_refused_registration_says_why_and_leaves_nothing(
    fields: dict[str, str], error: str, client_of: Client, tmp_path: Path
) -> None:
    response = register(client_of, make_adapter_files(tmp_path / "a"), **fields)
    assert response.status_code == 422
    assert error in response.content.decode()
    assert Adapter.objects.count() == 2


def test_the_form_names_the_files_that_are_missing(client_of: Client, tmp_path: Path) -> None:
    response = register(client_of, make_adapter_files(tmp_path / "a")[:1])
    assert "got adapter_config.json" in response.content.decode()


def test_aliases_move_and_go(client_of: Client, acme: Team) -> None:
    page = "/t/acme/adapters/support-bot/"
    assert client_of.post(f"{page}aliases", {"alias": "prod", "number": "1"})["Location"] == page
    adapter = adapter_get(tenant=acme.tenant, name="support-bot")
    assert [alias.name for alias in adapter.aliases.all()] == ["prod"]
    assert 'data-testid="alias-prod"' in client_of.get(page).content.decode()
    client_of.post(f"{page}aliases/prod/delete")
    assert not adapter_get(tenant=acme.tenant, name="support-bot").aliases.all()
    wrong = client_of.post(f"{page}aliases", {"alias": "v2", "number": "1"})
    assert wrong.status_code == 422
    assert "looks like a version number" in wrong.content.decode()


def test_a_key_is_shown_once_and_works(client_of: Client, acme: Team) -> None:
    page = client_of.post("/t/acme/keys/", {"name": "ci", "scopes": ["manage"], "lifetime": "30"})
    api_key = ApiKey.objects.get(name="ci")
    secret = page.content.decode().split('data-testid="key-secret">')[1].split("<")[0]
    assert api_key_verify(text=secret) == api_key
    assert "no-store" in page["Cache-Control"]
    assert secret not in client_of.get("/t/acme/keys/").content.decode()
    client_of.post(f"/t/acme/keys/{api_key.pk}/revoke")
    assert api_key_verify(text=secret) is None


def test_a_key_is_held_to_what_the_form_says(client_of: Client, acme: Team) -> None:
    form = {
        "name": "held",
        "scopes": ["inference"],
        "lifetime": "",
        "allowed_models": "support-bot@prod, tiny",
        "allowed_networks": "192.0.2.0/24 2001:db8::/32",
        "allowed_endpoints": ["chat/completions"],
    }
    wrong = client_of.post("/t/acme/keys/", form | {"allowed_networks": "10.0.0.1/8"})
    assert wrong.status_code == 422
    assert "write 10.0.0.0/8" in wrong.content.decode()
    client_of.post("/t/acme/keys/", form)
    api_key = ApiKey.objects.get(name="held")
    assert api_key.allowed_models == ["support-bot@prod", "tiny"]
    assert api_key.allowed_networks == ["192.0.2.0/24", "2001:db8::/32"]
    assert api_key.allowed_endpoints == ["chat/completions"]
    assert "2001:db8::/32" in client_of.get("/t/acme/keys/").content.decode()


def test_a_rotated_key_has_two_secrets(client_of: Client, acme: Team) -> None:
    client_of.post("/t/acme/keys/", {"name": "turn", "scopes": ["inference"], "lifetime": ""})
    api_key = ApiKey.objects.get(name="turn")
    url = f"/t/acme/keys/{api_key.pk}/rotate"
    page = client_of.post(url, {"overlap": "24"})
    secret = page.content.decode().split('data-testid="key-secret">')[1].split("<")[0]
    assert api_key_verify(text=secret) == api_key
    assert f'data-testid="overlap-{api_key.pk}"' in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert client_of.get(url).status_code == 405
    client_of.post(url, {"overlap": "soon"})
    assert api_key_verify(text=secret) == api_key
    client_of.post(f"/t/acme/keys/{api_key.pk}/revoke")
    assert client_of.post(url, {"overlap": "0"}).status_code == 302
    assert api_key_verify(text=secret) is None


def test_a_key_without_scopes_is_refused(client_of: Client, acme: Team) -> None:
    page = client_of.post("/t/acme/keys/", {"name": "ci", "lifetime": ""})
    assert page.status_code == 422
    assert "scopes must be one or more of" in page.content.decode()
    assert ApiKey.objects.filter(name="ci").count() == 0


def test_the_playgrounds_key_is_short_lived_and_only_calls_models(client_of: Client, acme: Team) -> None:
    assert client_of.get("/t/acme/playground/key").status_code == 405
    response = client_of.post("/t/acme/playground/key")
    api_key = api_key_verify(text=json.loads(response.content)["key"])
    assert api_key is not None
    assert (api_key.tenant_id, api_key.name, api_key.scopes) == ("acme", "playground", ["inference"])
    assert api_key.expires_at is not None
    assert 890 < (api_key.expires_at - api_key.created_at).total_seconds() <= 901
    assert "no-store" in response["Cache-Control"]


def test_the_playgrounds_key_needs_a_csrf_token(acme: Team) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(acme.user)
    assert strict.post("/t/acme/playground/key").status_code == 403


def test_unpriced_use_is_flagged_and_never_free(client_of: Client, acme: Team) -> None:
    page = client_of.get("/t/acme/usage/").content.decode()
    assert "partly unpriced" in page
    assert "$0.00" not in page


@pytest.mark.usefixtures("priced")
def test_the_usage_page_and_its_csv_carry_the_same_sums(client_of: Client, acme: Team) -> None:
    response = client_of.get("/t/acme/usage/?days=7")
    total, asked = response.context["total"], response.context["asked"]
    link = f"/t/acme/usage.csv?start={asked.start}&end={asked.end}"
    rows = list(csv.DictReader(io.StringIO(client_of.get(link).content.decode())))
    assert total.completion_tokens == sum(int(row["completion_tokens"]) for row in rows) > 0
    assert float(total.price) == pytest.approx(sum(float(row["price"]) for row in rows))
    assert response.context["chart"]["times"][-1] == str(asked.end)


def test_a_wrong_range_is_explained(client_of: Client, acme: Team) -> None:
    assert client_of.get("/t/acme/usage/?start=2026-02-30&end=x").status_code == 422
    page = client_of.get("/t/acme/usage/?start=2026-02-02&end=2026-02-01")
    assert "after start" in page.content.decode()
    assert client_of.get("/t/acme/usage.csv?start=x&end=y").status_code == 400
