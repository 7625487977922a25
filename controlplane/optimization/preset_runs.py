"""Measured figures of the presets, from stored runs of the demo model, one for each kind of processor.

`python -m optimizer presets` writes a run. A preset has no figures of a run if its recipe has changed since,
or if it is for another target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from contracts.recipes.recipe import Preset, Recipe

SCHEMA: Final = "graftwork.optimization.presets/1"
_ORIGINAL: Final = 0
"""The first arm of its comparison."""
_SPEED_FIELDS: Final = ("ratio", "low", "high", "verdict")


def preset_runs(name: Preset, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the figures of preset `name` with this `recipe` from each stored run of it, by file name.

    Raises:
        ValueError: a stored run has another schema.
    """
    stored = [_stored(path) for path in sorted(Path(settings.PRESET_RUN_FOLDER).glob("presets-*.json"))]
    return [
        _figures(name, run["comparison"])
        for run in stored
        if run["presets"].get(name.value, {}).get("recipe_digest") == recipe.digest
    ]


def _figures(name: Preset, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return one run's figures of a preset."""
    arms = {arm["name"]: arm for arm in measured["arms"]}
    original = measured["arms"][_ORIGINAL]
    quality = measured["quality"]["arms"][name.value].get("texts", {})
    return {
        "model": original["model"],
        "machine": {key: value for key, value in measured["machine"].items() if key != "date"},
        "date": measured["machine"]["date"],
        "rounds": measured["rounds"]["measured"],
        "weights_bytes": arms[name.value]["weights_bytes"],
        "original_weights_bytes": original["weights_bytes"],
        "perplexity": quality.get("perplexity"),
        "perplexity_ratio": quality.get("perplexity_ratio"),
        "levels": [_level(name.value, original["name"], level, measured) for level in measured["levels"]],
    }


def _level(name: str, original: str, level: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures at one concurrency."""
    streams, own = level["concurrency"], level["arms"][name]
    verdicts = next(item["figures"] for item in measured["comparisons"] if item["arm"] == name)
    speed = verdicts.get(f"tokens_per_s at {streams}")
    return {
        "concurrency": streams,
        "tokens_per_s": own["tokens_per_s"],
        "original_tokens_per_s": level["arms"][original]["tokens_per_s"],
        "beside_original": {key: speed[key] for key in _SPEED_FIELDS} if speed else None,
        "ttft_ms": own["ttft_ms"],
        "itl_ms": own["itl_ms"],
    }


def _stored(path: Path) -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no {SCHEMA}: have `optimizer presets` write it anew")
    return content
