"""Modules have one name, whichever class a checkpoint was saved or an adapter was trained with."""

from __future__ import annotations

import pytest

from contracts.adapters.module_names import LAYOUTS, PLAIN, WITHOUT_HEAD, Layout, layout_of

OLDER, NEWER, VISION_WITHOUT_HEAD = LAYOUTS
LAYER = "layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("paths", "layout"),
    [
        ([], PLAIN),
        ([f"model.{LAYER}.weight", "lm_head.weight"], PLAIN),
        (["vision_tower.encoder.layers.0.mlp.fc1.weight", f"language_model.model.{LAYER}.weight"], OLDER),
        ([f"model.vision_tower.{LAYER}.weight", f"model.language_model.{LAYER}.weight"], NEWER),
        ([f"model.vision_tower.{LAYER}.weight", f"model.{LAYER}.weight"], PLAIN),
        ([f"{LAYER}.weight", "norm.weight"], WITHOUT_HEAD),
        (["norm.weight", "embed_tokens.weight"], WITHOUT_HEAD),
        ([f"vision_tower.{LAYER}.weight", f"language_model.{LAYER}.weight"], VISION_WITHOUT_HEAD),
    ],
)
def test_the_layout_follows_from_the_names(paths: list[str], layout: Layout) -> None:
    assert layout_of(paths) is layout


@pytest.mark.parametrize(
    ("layout", "own"),
    [
        (PLAIN, [f"model.{LAYER}", "model.embed_tokens", "lm_head", "lm_head.weight"]),
        (
            OLDER,
            [
                f"language_model.model.{LAYER}",
                "language_model.model.embed_tokens",
                "language_model.lm_head",
                "language_model.lm_head.weight",
            ],
        ),
        (WITHOUT_HEAD, [LAYER, "embed_tokens", "lm_head", "lm_head.weight"]),
        (
            VISION_WITHOUT_HEAD,
            [f"language_model.{LAYER}", "language_model.embed_tokens", "lm_head", "lm_head.weight"],
        ),
        (
            NEWER,
            [
                f"model.language_model.{LAYER}",
                "model.language_model.embed_tokens",
                "lm_head",
                "lm_head.weight",
            ],
        ),
    ],
)
def test_names_of_the_language_model_are_common(layout: Layout, own: list[str]) -> None:
    common = [f"model.{LAYER}", "model.embed_tokens", "lm_head", "lm_head.weight"]
    assert [layout.common_name(path) for path in own] == common
    assert [layout.path_of(name) for name in common] == own


@pytest.mark.parametrize(("layout", "own"), [(OLDER, "vision_tower.x"), (NEWER, "model.vision_tower.x")])
def test_other_modules_keep_apart_from_the_language_model(layout: Layout, own: str) -> None:
    assert layout.common_name(own) == "vision_tower.x"
    assert layout.path_of("vision_tower.x") == own
