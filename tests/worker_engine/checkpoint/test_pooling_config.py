"""The pooling config of sentence-transformers is read, and an unsupported setting is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters.pooling import Pooling
from worker_engine.checkpoint.pooling_config import read_pooling
from worker_engine.errors import CheckpointError
from worker_engine.protocol import PoolingParams

FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def flags(*on: str) -> dict[str, Any]:
    """As sentence-transformers writes them."""
    return {"word_embedding_dimension": 72, "include_prompt": True} | {
        f"pooling_mode_{name}": name in on for name in FLAGS
    }


def write(folder: Path, config: object, at: str = "1_Pooling", modules: object = None) -> Path:
    (folder / at).mkdir(parents=True, exist_ok=True)
    (folder / at / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def modules(*names: str) -> list[dict[str, Any]]:
    parts = [name.partition("@") for name in names]
    return [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, _, path in parts]


def test_without_a_word_the_last_token(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == PoolingParams(Pooling.LAST, normalize=True)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (flags("lasttoken"), Pooling.LAST),
        (flags("mean_tokens"), Pooling.MEAN),
        (flags("cls_token"), Pooling.FIRST),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
    ],
)
def test_modes(config: dict[str, Any], pooling: Pooling, tmp_path: Path) -> None:
    assert read_pooling(write(tmp_path, config)) == PoolingParams(pooling, normalize=True)


def test_the_module_may_lie_elsewhere(tmp_path: Path) -> None:
    chain = modules("Transformer@", "Pooling@2_P", "Normalize@3_N")
    write(tmp_path, flags("cls_token"))
    assert read_pooling(write(tmp_path, flags("mean_tokens"), "2_P", chain)) == PoolingParams(Pooling.MEAN)
    (tmp_path / "modules.json").write_text(json.dumps(modules("Transformer@")))
    assert read_pooling(tmp_path) == PoolingParams(Pooling.LAST, normalize=False)


def test_only_a_list_with_normalize_scales_to_length_one(tmp_path: Path) -> None:
    chain = modules("Transformer@", "Pooling@1_Pooling")
    assert not read_pooling(write(tmp_path, flags("mean_tokens"), modules=chain)).normalize
    chain += modules("Normalize@2_Normalize")
    assert read_pooling(write(tmp_path, flags("mean_tokens"), modules=chain)).normalize


@pytest.mark.parametrize(
    ("config", "chain", "named"),
    [
        (flags("max_tokens"), None, "pooling_mode_max_tokens"),
        (flags("weightedmean_tokens"), None, "pooling_mode_weightedmean_tokens"),
        (flags("cls_token", "mean_tokens"), None, "pooling_mode_cls_token, pooling_mode_mean_tokens"),
        (flags(), None, "none"),
        ({"pooling_mode": "max"}, None, "max"),
        ([], None, "object"),
        (flags("mean_tokens"), {}, "array"),
        (flags("mean_tokens"), modules("Pooling@1_Pooling", "Dense@2_Dense"), "Dense"),
        (flags("mean_tokens"), [5], "5"),
        (flags("mean_tokens"), modules("Pooling@../elsewhere"), "elsewhere"),
    ],
)
def test_what_is_not_served_is_named(config: object, chain: object, named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_pooling(write(tmp_path, config, modules=chain))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json"):
        read_pooling(tmp_path)
