"""What presets are worth: by the run of the demo model that the product comes with, and by nothing else.

`python -m optimizer presets` writes it. A preset whose recipe has changed since, or which is
for another target, has no stored run, and nothing is told of it.
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
_TOLD: Final = ("ratio", "low", "high", "verdict")


def preset_run(name: Preset, recipe: Recipe) -> dict[str, Any] | None:
    """The figures of `recipe`, which is the preset's for some target; None where no run of it is stored."""
    stored = _stored(Path(settings.PRESET_RUN_FILE))
    made = stored.get("presets", {}).get(name.value)
    if made is None or made["recipe_digest"] != recipe.digest:
        return None
    measured = stored["comparison"]
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
    """One number of streams."""
    streams, own = level["concurrency"], level["arms"][name]
    verdicts = next(item["figures"] for item in measured["comparisons"] if item["arm"] == name)
    speed = verdicts.get(f"tokens_per_s at {streams}")
    return {
        "concurrency": streams,
        "tokens_per_s": own["tokens_per_s"],
        "original_tokens_per_s": level["arms"][original]["tokens_per_s"],
        "beside_original": {key: speed[key] for key in _TOLD} if speed else None,
        "ttft_ms": own["ttft_ms"],
        "itl_ms": own["itl_ms"],
    }


def _stored(path: Path) -> Mapping[str, Any]:
    """Nothing where there is no file. Raises ValueError for one that is something else."""
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if told.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no {SCHEMA}: have `optimizer presets` write it anew")
    return told
