"""How many tokens an image takes, out of checkpoints' configurations as they are published."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from contracts.image_tokens import NO_IMAGES, UNKNOWN_MOST, ImageTokens
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_route
from controlplane.catalog.services import base_model_register
from controlplane.catalog.vision import image_rule
from controlplane.routes.selectors import route_base
from tests.controlplane.conftest import write_checkpoint

QWEN2_5 = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
QWEN3 = {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}
MISTRAL3 = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "vision_config": {"model_type": "pixtral", "patch_size": 14, "image_size": 1540},
}
LLAVA = {"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}}
PIXTRAL = {
    "model_type": "llava",
    "vision_config": {"model_type": "pixtral", "patch_size": 16, "image_size": 1024},
}
GEMMA3 = {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"image_size": 896}}
INTERNVL = {
    "model_type": "internvl_chat",
    "max_dynamic_patch": 12,
    "downsample_ratio": 0.5,
    "force_image_size": 448,
    "vision_config": {"patch_size": 14, "image_size": 448},
}


@pytest.mark.parametrize(
    ("config", "processor", "rule"),
    [
        (QWEN2_5, {"min_pixels": 3136, "max_pixels": 12845056}, ImageTokens(16_384, 28, least=4, extra=2)),
        (
            QWEN3,
            {"size": {"shortest_edge": 65536, "longest_edge": 16777216}},
            ImageTokens(16_384, 32, least=64, extra=2),
        ),
        (QWEN3, {}, ImageTokens(16_384, 32, least=64, extra=2)),
        (QWEN2_5, {"max_pixels": 784}, ImageTokens(200, 28, least=64, extra=2)),
        (
            {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": QWEN2_5["vision_config"]}},
            {},
            ImageTokens(16_384, 28, least=64, extra=2),
        ),
        (MISTRAL3, {"size": {"longest_edge": 1540}}, ImageTokens(55 * 56, 28, max_side=1540, row=1)),
        (PIXTRAL, {}, ImageTokens(64 * 65, 16, max_side=1024, row=1)),
        (LLAVA, {}, ImageTokens(577)),
        (GEMMA3, {"do_pan_and_scan": None}, ImageTokens(256, extra=6)),
        (GEMMA3, {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 4}, ImageTokens(1280, extra=54)),
        ({"model_type": "gemma4", "vision_config": {}}, {}, ImageTokens(280, extra=2)),
        ({"model_type": "gemma4", "vision_config": {"patch_size": 16}}, {}, ImageTokens(280, extra=2)),
        (INTERNVL, {}, ImageTokens(13 * 256, extra=2)),
        ({"model_type": "novel_vl", "vision_config": {"depth": 1}}, {}, ImageTokens(UNKNOWN_MOST)),
        ({"model_type": "chameleon"}, {}, ImageTokens(UNKNOWN_MOST)),
        ({"model_type": "qwen3"}, {"max_pixels": 4}, NO_IMAGES),
        ({"model_type": "gemma3_text", "vision_config": None}, {}, NO_IMAGES),
    ],
)
def test_the_rule_of_a_class(config: dict[str, Any], processor: dict[str, Any], rule: ImageTokens) -> None:
    assert image_rule(config, processor) == rule


@pytest.mark.parametrize(
    "processor",
    [
        {"max_pixels": "many"},
        {"max_pixels": 1 << 80},
        {"max_pixels": float("nan")},
        {"max_pixels": [1]},
        {"size": 5},
        {"min_pixels": -(1 << 40)},
        {"min_pixels": 1 << 60},
    ],
)
def test_values_of_another_kind_leave_the_careful_bound(processor: dict[str, Any]) -> None:
    assert image_rule(QWEN3, processor) == ImageTokens(UNKNOWN_MOST)


@pytest.mark.parametrize("patch", [0, -14, "x", [], 1 << 60])
def test_sizes_of_another_kind_do_too(patch: Any) -> None:
    for config in (QWEN3, MISTRAL3, LLAVA):
        vision = {**config["vision_config"], "patch_size": patch}  # type: ignore[dict-item]
        rule = image_rule({**config, "vision_config": vision}, {})
        assert rule.reads_images
        assert all(value >= 0 for value in asdict(rule).values())
        assert 0 < rule.bound(1000, 1000) <= 1 << 20


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_registration_publishes_the_rule(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "base")
    plain = base_model_register(name="plain", source=folder)
    assert (plain.image_tokens, route_base(base_model="plain").image_tokens) == (asdict(NO_IMAGES), NO_IMAGES)  # type: ignore[union-attr]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **QWEN2_5}))
    found = {"min_pixels": 3136, "max_pixels": 1003520}
    part = found if name.startswith("pre") else {"image_processor": found}
    (folder / name).write_text(json.dumps(part))
    base_model_register(name="seeing", source=folder)
    route = route_base(base_model="seeing")
    assert route is not None
    assert route.image_tokens == ImageTokens(1280, 28, least=4, extra=2)
    older = BaseModel.objects.get(name="seeing")
    older.image_tokens = None
    older.save()
    assert base_model_route(base_model=BaseModel.objects.get(name="seeing")).image_tokens is None
