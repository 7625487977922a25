"""Validation: which adapters become ready, and the message of each refusal."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters.file_limit import DEFAULT_RANK
from controlplane.adapters import attempt
from controlplane.adapters.aliases import adapter_pin, alias_move
from controlplane.adapters.lifecycle import adapter_delete
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import Tenant
from tests.controlplane.conftest import CONFIG, adapter_files, adapter_tensors, bf16, safetensors

pytestmark = pytest.mark.django_db
CONFIG_FILE, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def register(
    tenant: Tenant, base_model: BaseModel, files: dict[str, bytes] | None = None, name: str = "pirate"
) -> AdapterVersion:
    """Registers and validates, as the task does."""
    streams = {key: BytesIO(data) for key, data in (adapter_files() if files is None else files).items()}
    version = adapter_register(tenant=tenant, name=name, base_model=base_model, files=streams)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def stored(tmp_path: Path) -> list[str]:
    root = tmp_path / "artifacts"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_good_adapter_is_stored_by_content_and_routed(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    version = register(tenant, base_model)
    assert (version.status, version.reason, version.rank) == ("ready", "", 2)
    assert {step["name"]: step["status"] for step in version.steps if step["status"] != "done"} == {
        "smoke": "skipped"
    }
    assert "not run, because no copy serves tiny-base" in str(version.steps)
    assert stored(tmp_path) == [
        f"adapters/{version.sha256}/{CONFIG_FILE}",
        f"adapters/{version.sha256}/{WEIGHTS}",
    ]
    route = route_table().adapters["acme"]["pirate"]
    assert (route.base, route.default, route.versions[1]) == ("tiny-base", 1, version.ref())
    assert version.uri.endswith(f"/adapters/{version.sha256}/")


def change(name: str, value: object) -> Callable[[dict[str, bytes]], None]:
    def apply(files: dict[str, bytes]) -> None:
        files[CONFIG_FILE] = json.dumps({**CONFIG, name: value}).encode()

    return apply


def tensors(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def apply(files: dict[str, bytes]) -> None:
        items = {**adapter_tensors(), **changes}
        files[WEIGHTS] = safetensors({name: item for name, item in items.items() if item is not None})

    return apply


def raw(edit: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    def apply(files: dict[str, bytes]) -> None:
        files[WEIGHTS] = edit(files[WEIGHTS])

    return apply


REFUSALS = [
    (change("peft_type", "IA3"), "peft_type must be 'LORA', got 'IA3'"),
    (change("r", 65), "rank 65 is more than 64"),
    (change("bias", "some"), "bias must be 'none'"),
    (change("use_dora", True), "q_proj.lora_magnitude_vector is missing"),
    (change("use_qalora", True), "use_qalora is not served"),
    (change("a_field_of_tomorrow", 3), "a_field_of_tomorrow is not served"),
    (change("layer_replication", [[0, 2]]), "layer_replication is not served"),
    (change("modules_to_save", ["embed_tokens"]), "modules_to_save names 'embed_tokens', but no tensor"),
    (change("trainable_token_indices", [1]), "trainable_token_indices names 'embed_tokens', but no tensor"),
    (change("target_modules", r".*\.q_proj"), "v_proj.lora_A.weight: target_modules does not name"),
    (change("target_modules", r"(.*"), "target_modules is not a regular expression"),
    (change("layers_to_transform", [1]), "layers.0.self_attn.q_proj, so PEFT ignores it"),
    (change("target_modules", ["q_proj", "v_proj", "embed_tokens"]), "targets 'embed_tokens', but no tensor"),
    (change("rank_pattern", {r"(a)\1": 4}), "cannot be matched in linear time"),
    (change("rank_pattern", {r"(.*)+\.q_proj": 4}), f"tensor {A0} has shape [2, 8], expected [4, 8]"),
    (change("r", 4), f"tensor {A0} has shape [2, 8], expected [4, 8]"),
    (lambda files: files.update({CONFIG_FILE: b"{"}), "adapter_config.json is not JSON"),
    (tensors(**{A0: bf16(2, 9)}), f"tensor {A0} has shape [2, 9], expected [2, 8]"),
    (tensors(**{B0: None}), f"tensor {B0} is missing"),
    (tensors(**{A0: ("I8", (2, 8), bytes(16))}), f"tensor {A0} is I8, expected one of F32, F16, BF16"),
    (tensors(**{A0: bf16(2, 8, fill=0x7FC0)}), f"tensor {A0} holds NaN or infinite values"),
    (tensors(**{A0: ("F32", (2, 8), struct.pack("<f", float("inf")) * 16)}), f"tensor {A0} holds NaN"),
    (tensors(**{B0: ("F32", (8, 2), struct.pack("<f", 3e38) * 16)}), f"tensor {B0} overflows bfloat16"),
    (
        tensors(**{"lm_head.lora_A.weight": bf16(2, 8)}),
        "tensor lm_head.lora_A.weight is not served: expected base_model.model.",
    ),
    (
        tensors(**{A0.replace("layers.0", "layers.9"): bf16(2, 8)}),
        "the base model has no module model.layers.9.self_attn.q_proj",
    ),
    (raw(lambda data: data[:-1]), "but the file holds"),
    (raw(lambda data: data + b"x"), "but the file holds"),
    (
        raw(lambda data: struct.pack("<Q", 1 << 40) + data[8:]),
        "its header claims 1099511627776 bytes; at most",
    ),
    (raw(lambda data: b"\x80\x04"), "too few for a header"),
    (raw(lambda data: data.replace(b'"BF16"', b'"F999"', 1)), "unknown dtype 'F999'"),
    (raw(lambda data: safetensors({})), "holds no LoRA tensor"),
]


@pytest.mark.parametrize(("damage", "reason"), REFUSALS)
def test_a_bad_adapter_is_refused_in_words_and_leaves_nothing(
    tenant: Tenant,
    base_model: BaseModel,
    tmp_path: Path,
    damage: Callable[[dict[str, bytes]], None],
    reason: str,
) -> None:
    files = adapter_files()
    damage(files)
    version = register(tenant, base_model, files)
    assert version.status == "refused"
    assert reason in version.reason
    assert [step["status"] for step in version.steps].count("failed") == 1
    assert stored(tmp_path) == []
    assert "acme" not in route_table().adapters


def test_weights_that_the_worker_refuses_by_default_are_warned_of(
    tenant: Tenant, base_model: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(adapter_files()["adapter_model.safetensors"])
    monkeypatch.setattr(attempt, "max_adapter_bytes", lambda _, rank: size)
    assert register(tenant, base_model).steps[-1]["status"] == "done"
    # The base takes higher ranks than the worker's default counts with.
    BaseModel.objects.update(max_lora_rank=DEFAULT_RANK + 1)
    monkeypatch.setattr(attempt, "max_adapter_bytes", lambda _, rank: size - (rank == DEFAULT_RANK))
    version = register(tenant, base_model)
    step = version.steps[-1]
    assert (version.status, step["name"], step["status"]) == ("ready", "publish", "warned")
    assert "max_adapter_mib of 1 or more" in step["detail"]


def test_names_that_the_base_lacks_are_warned_of(tenant: Tenant, base_model: BaseModel) -> None:
    files = adapter_files()
    change("target_modules", ["q_proj", "v_proj", "gate_up_proj"])(files)
    version = register(tenant, base_model, files)
    assert (version.status, version.reason) == ("ready", "")
    warned = {step["name"]: step["detail"] for step in version.steps if step["status"] == "warned"}
    assert warned == {
        "tensors": "largest rank 2; target_modules names 'gate_up_proj', which this base model lacks"
    }


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([CONFIG_FILE, "adapter_model.bin"], "adapter_model.bin is a pickle"),
        ([CONFIG_FILE], "send the files"),
        ([CONFIG_FILE, WEIGHTS, "../evil"], "leads out of its folder"),
        ([], "send the files"),
    ],
)
def test_other_files_are_refused_at_once(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, names: list[str], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        register(tenant, base_model, dict.fromkeys(names, b"x"))
    assert stored(tmp_path) == []
    assert not Adapter.objects.exists()


def test_names_are_slugs_and_never_a_base_models(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    for name in ("../x", "A", "a@b", "", "x" * 64):
        with pytest.raises(InvalidInputError):
            register(tenant, base_model, name=name)
    with pytest.raises(ConflictError, match="is a base model"):
        register(tenant, base_model, name="tiny-base")
    register(tenant, base_model, name="taken")
    with pytest.raises(ConflictError, match="choose another name"):
        base_model_register(name="taken", source=base_model.source)


def test_versions_aliases_pin_and_deletion_stand_in_the_route(tenant: Tenant, base_model: BaseModel) -> None:
    adapter = register(tenant, base_model).adapter
    register(tenant, base_model, adapter_files(tensors=adapter_tensors() | {A0: bf16(2, 8, fill=0x4000)}))
    register(tenant, base_model, {CONFIG_FILE: b"{", WEIGHTS: b""})
    alias_move(adapter=adapter, name="prod", number=1)
    route = route_table().adapters["acme"]["pirate"]
    assert (route.default, set(route.versions), route.aliases) == (2, {1, 2}, {"prod": 1})
    alias_move(adapter=adapter, name="prod", number=2)
    adapter_pin(adapter=adapter, number=1)
    route = route_table().adapters["acme"]["pirate"]
    assert (route.default, route.aliases) == (1, {"prod": 2})
    with pytest.raises(ConflictError, match="refused, not ready"):
        alias_move(adapter=adapter, name="prod", number=3)
    with pytest.raises(NotFoundError, match="no version 9"):
        alias_move(adapter=adapter, name="prod", number=9)
    with pytest.raises(InvalidInputError, match="version number"):
        alias_move(adapter=adapter, name="v2", number=1)
    adapter_delete(adapter=adapter)
    assert "pirate" not in route_table().adapters.get("acme", {})


def test_a_uri_is_imported_only_from_an_import_root(
    tenant: Tenant, base_model: BaseModel, graftwork: Path, tmp_path: Path
) -> None:
    folder = graftwork / "pirate"
    folder.mkdir()
    for name, data in {**adapter_files(), "optimizer.pt": b"x", "training_args.bin": b"x"}.items():
        (folder / name).write_bytes(data)

    def status(uri: str) -> AdapterVersion:
        version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri)
        version_validate(version_id=version.pk)
        version.refresh_from_db()
        return version

    assert status(folder.as_uri()).status == "ready"
    (folder / WEIGHTS).unlink()
    assert f"holds no {WEIGHTS}" in status(folder.as_uri()).reason
    (folder / "adapter_model.bin").write_bytes(b"x")
    assert "is a pickle" in status(folder.as_uri()).reason
    (folder / WEIGHTS).symlink_to("/etc/passwd")
    assert status(folder.as_uri()).status == "refused"
    (graftwork / "out").symlink_to("/etc")
    for uri in (
        "file:///etc/",
        f"file://{graftwork}/../",
        f"file://{graftwork}/out",
        "https://example.test/a",
        "s3://closed/adapters/x",
        "s3://open-bucket/adapters-not/x",
        "s3://open-bucket/adapters/../x",
    ):
        with pytest.raises(InvalidInputError):
            status(uri)
    assert list((tmp_path / "artifacts" / "incoming").iterdir()) == []


def test_only_one_of_two_runs_validates(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.attempts) == ("ready", 1)
