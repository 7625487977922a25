"""An adapter's README.md is stored with the version, for every way of uploading it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from pytest_django import Settings

from controlplane.adapters.card_html import card_render
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.uploads.file_names import MAX_CARD_BYTES
from controlplane.artifacts.uploads.services import upload_create
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from tests.controlplane.adapters.packing import tarred, zipped
from tests.controlplane.adapters.test_validation import register, stored
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
CARD = "README.md"
HOSTILE = {"[[](" * 250_000: "time", "|a|b|\n|-|-|\n" * 8_000: "html"}


def card_of(version: AdapterVersion) -> str:
    version.refresh_from_db()
    assert (version.status, version.reason) == ("ready", "")
    return version.card


def test_a_card_is_rendered_once_when_its_version_is_validated(tenant: Tenant, base_model: BaseModel) -> None:
    text = b"---\ntags: [lora]\n---\n# Bot\n\n<script>alert(1)</script>"
    version = register(tenant, base_model, adapter_files() | {CARD: text})
    assert card_of(version).endswith("</script>")
    assert version.card_html == "<h3>Bot</h3>\n<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"


@pytest.mark.costly("a hostile model card, and its process")
@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE.values())
def test_a_card_that_takes_too_much_is_not_rendered(text: str) -> None:
    assert card_render(text) == ""


def test_a_card_that_people_write_is_rendered_within_the_limits() -> None:
    section = "# Results\n\nIt answers **briefly**, see [the run](https://runs.test/1).\n\n"
    table = "| metric | value |\n|--|--|\n" + "| loss | 1.5 |\n" * 20 + "\n"
    html = card_render((section + table) * 200)
    assert html.count("<h3>Results</h3>") == 200
    assert html.count("<td>loss</td>") == 4000


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize(
    ("cards", "kept"),
    [
        ({"bot/README.md": b"# Bot"}, "# Bot"),
        ({"README.md": b"of the repository"}, ""),
        ({"README.md": b"of the repository", "bot/README.md": b"# Bot"}, "# Bot"),
        ({"bot/README.md": b"# Bot", "README.md": b"of the repository"}, "# Bot"),
        ({"bot/checkpoint-1/README.md": b"of a checkpoint"}, ""),
        ({"bot/readme.md": b"another name"}, ""),
        ({}, ""),
    ],
)
def test_an_archives_card_is_that_of_the_adapters_folder(
    pack: object, cards: dict[str, bytes], kept: str, tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    files = cards | {f"bot/{name}": data for name, data in adapter_files().items()}
    name = "bot.zip" if pack is zipped else "bot.tar.gz"
    version = register(tenant, base_model, {name: pack(files)})  # type: ignore[operator]
    assert card_of(version) == kept
    assert len(stored(tmp_path)) == 2, "the card is in the row, not under the content's digest"


def test_a_card_is_cut_and_made_text(tenant: Tenant, base_model: BaseModel) -> None:
    data = b"\xff\0 R\xc3\xa9sum\xc3\xa9 " + b"x" * (2 * MAX_CARD_BYTES)
    card = card_of(register(tenant, base_model, adapter_files() | {CARD: data}))
    assert card.startswith("\ufffd Résumé x")
    assert len(card.encode()) <= MAX_CARD_BYTES + 2


@pytest.mark.costly("a process for each card")
def test_two_versions_of_one_content_have_each_their_own_card(tenant: Tenant, base_model: BaseModel) -> None:
    first = register(tenant, base_model, adapter_files() | {CARD: b"one"})
    second = register(tenant, base_model, adapter_files() | {CARD: b"two"})
    third = register(tenant, base_model)
    assert first.sha256 == second.sha256 == third.sha256
    assert [card_of(version) for version in (first, second, third)] == ["one", "two", ""]


def imported(tenant: Tenant, base_model: BaseModel, folder: Path) -> AdapterVersion:
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=f"file://{folder}/")
    version_validate(version_id=version.pk)
    return version


def test_a_folders_card_is_read_and_one_that_cannot_be_refuses_nothing(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, settings: Settings
) -> None:
    root = settings.GRAFTWORK.import_roots[0]
    for name, data in adapter_files().items():
        (root / name).write_bytes(data)
    assert card_of(imported(tenant, base_model, root)) == ""
    (root / CARD).mkdir()
    assert card_of(imported(tenant, base_model, root)) == ""
    (root / CARD).rmdir()
    (root / CARD).write_text("from a folder")
    assert card_of(imported(tenant, base_model, root)) == "from a folder"


def test_a_card_may_be_uploaded_beside_the_files(tenant: Tenant, base_model: BaseModel) -> None:
    assert upload_create(tenant=tenant, name=CARD, size=10).size == 10


def test_a_card_sent_as_bytes_is_no_part_of_the_quota(tenant: Tenant, base_model: BaseModel) -> None:
    plain = register(tenant, base_model)
    streams = {name: BytesIO(data) for name, data in (adapter_files() | {CARD: b"x" * 1000}).items()}
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=streams)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.size_bytes == plain.size_bytes
