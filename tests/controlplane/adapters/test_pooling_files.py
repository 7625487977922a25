"""An embedding adapter's pooling files are stored and digested with it, for every way of uploading it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from contracts.adapters.reference import POOLING_FILES
from contracts.capabilities.capability import BaseNeeds, known_traits
from contracts.capabilities.engines import adapter_offers
from contracts.capabilities.traits import AdapterNeeds
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.store.local import LocalStore
from controlplane.artifacts.uploads.services import upload_create
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from tests.controlplane.adapters.packing import tarred, zipped
from tests.controlplane.adapters.test_validation import register
from tests.controlplane.conftest import CONFIG, adapter_files
from worker_engine.adapters.disk_cache import files_digest

pytestmark = pytest.mark.django_db
EMBEDS = {**CONFIG, "task_type": "FEATURE_EXTRACTION"}
MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
LLAMA = "LlamaForCausalLM"
POOLING = {
    "1_Pooling/config.json": json.dumps({"pooling_mode_mean_tokens": True}).encode(),
    "modules.json": json.dumps(MODULES).encode(),
}


def stored_files(version: AdapterVersion) -> dict[str, bytes]:
    """Return the files of a ready version's folder, by path in it."""
    assert (version.status, version.reason) == ("ready", "")
    folder = Path(version.uri.removeprefix("file://"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def imported(tenant: Tenant, base_model: BaseModel, folder: Path) -> AdapterVersion:
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=f"file://{folder}/")
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("way", ["zip", "tar.gz", "folder", "files"])
def test_they_are_part_of_an_embedding_adapters_identity(
    way: str, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    files = adapter_files(EMBEDS) | POOLING
    packed = {f"bot/{name}": data for name, data in reversed(files.items())}
    # A checkpoint's and the repository's files are not the adapter's.
    packed |= {f"bot/checkpoint-1/{name}": b"[]" for name in POOLING} | {"modules.json": b"x"}
    match way:
        case "zip":
            version = register(tenant, base_model, {"bot.zip": zipped(packed)})
        case "tar.gz":
            version = register(tenant, base_model, {"bot.tar.gz": tarred(packed)})
        case "folder":
            write(settings.GRAFTWORK.import_roots[0], files)
            version = imported(tenant, base_model, settings.GRAFTWORK.import_roots[0])
        case _:
            version = register(tenant, base_model, files)
    assert stored_files(version) == files
    assert version.sha256 == files_digest(files), "a worker checks this digest after its fetch"
    assert version.size_bytes == sum(map(len, files.values()))


@pytest.mark.parametrize(
    ("pooling", "traits"),
    [
        ({}, []),
        (POOLING, ["own-pooling"]),
        ({"modules.json": b"[]"}, ["own-pooling"]),
        ({"1_Pooling/config.json": b'{"pooling_mode_max_tokens": true}'}, ["other-pooling"]),
        ({**POOLING, "modules.json": json.dumps([*MODULES, DENSE]).encode()}, ["other-pooling"]),
    ],
    ids=["none", "mean", "no module", "max", "dense"],
)
def test_only_an_engine_that_pools_like_them_serves_the_adapter(
    pooling: dict[str, bytes], traits: list[str], tenant: Tenant, base_model: BaseModel
) -> None:
    version = register(tenant, base_model, {"bot.zip": zipped(adapter_files(EMBEDS) | pooling)})
    assert version.traits == ["feature-extraction", *traits]
    needs, base = (
        AdapterNeeds(version.rank or 0, known_traits(version.traits) or frozenset()),
        BaseNeeds(LLAMA),
    )
    offers = [offer.partition(" from")[0] for offer in adapter_offers(base, needs)]
    assert offers == {"own-pooling": ["the bundled worker"], "other-pooling": []}.get(
        "".join(traits), ["the bundled worker", "vLLM"]
    )


def test_another_adapters_are_dropped(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model, {"bot.zip": zipped(adapter_files() | POOLING)})
    assert stored_files(version).keys() == adapter_files().keys()
    assert version.sha256 == files_digest(adapter_files())


@pytest.mark.parametrize(
    ("pooling", "reason"),
    [
        ({"modules.json": POOLING["modules.json"]}, "1_Pooling/config.json must come with it"),
        ({**POOLING, "modules.json": b"{}"}, "modules.json must hold a JSON array"),
        ({**POOLING, "1_Pooling/config.json": b"{"}, "1_Pooling/config.json cannot be read"),
        ({**POOLING, "1_Pooling/config.json": b" " * (65 << 10)}, "larger than the accepted 65536 bytes"),
    ],
)
def test_broken_ones_are_refused_by_name(
    pooling: dict[str, bytes], reason: str, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    write(settings.GRAFTWORK.import_roots[0], adapter_files(EMBEDS) | pooling)
    version = imported(tenant, base_model, settings.GRAFTWORK.import_roots[0])
    assert version.status == "refused"
    assert reason in version.reason


def test_no_link_leads_out_of_an_import_folder(
    tenant: Tenant, base_model: BaseModel, settings: Settings, tmp_path: Path
) -> None:
    root, outside = settings.GRAFTWORK.import_roots[0], tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_bytes(POOLING["1_Pooling/config.json"])
    write(root, adapter_files(EMBEDS))
    (root / "1_Pooling").symlink_to(outside, target_is_directory=True)
    assert stored_files(imported(tenant, base_model, root)).keys() == adapter_files().keys()


def test_they_may_be_uploaded_beside_the_files(tenant: Tenant) -> None:
    for name in POOLING_FILES:
        assert upload_create(tenant=tenant, name=name, size=10).name == name


def test_a_copy_of_a_folder_has_its_inner_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", POOLING)
    LocalStore(tmp_path).copy("a", "b/c", progress=lambda: None)
    assert (tmp_path / "b/c/1_Pooling/config.json").read_bytes() == POOLING["1_Pooling/config.json"]


def test_verify_finds_a_lost_one(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = register(tenant, base_model, adapter_files(EMBEDS) | POOLING)
    call_command("verify")
    folder = Path(version.uri.removeprefix("file://"))
    folder.chmod(0o755)
    (folder / "modules.json").unlink()
    with pytest.raises(CommandError, match="1 faults"):
        call_command("verify")
    assert (
        f"missing or changed in the artifact store: files of adapters/{version.sha256}"
        in capsys.readouterr().err
    )
