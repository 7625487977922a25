"""A comparison's result as `compare` writes it: three arms, two numbers of streams."""

from __future__ import annotations

from typing import Any

from contracts.recipes.recipe import Preset, Target, preset


def _figures(speed: float, itl: float, hour: float | None, streams: int) -> dict[str, Any]:
    price = hour / (streams / (itl / 1e3) * 3600 / 1e6) / 4 if hour else None
    blended = [{"by": "throughput", "formula": "f", "currency": "USD", "per_million": price}] if price else []
    return {
        "requests": 40,
        "prompt_tokens": 4000,
        "cached_share": 0.0,
        "completion_tokens": 1280,
        "ttft_ms": {"p50": 120.0, "p90": 150.0, "p99": 190.0},
        "itl_ms": {"p50": itl, "p90": itl * 1.2, "p99": itl * 1.6},
        "answer_ms": {"p50": 900.0, "p90": 950.0, "p99": 990.0},
        "otps": {"p50": speed, "p90": speed, "p99": speed},
        "tokens_per_s": speed,
        "throughput_by_formula": 1e3 * streams / itl,
        "blended": blended,
    }


def _verdict(ratio: float, low: float, high: float) -> dict[str, Any]:
    shown = not low <= 1 <= high
    return {
        "ratio": ratio,
        "low": low,
        "high": high,
        "p": 0.01 if shown else 0.6,
        "verdict": "difference shown" if shown else "no difference shown",
    }


def result(*, hour: float | None = 1.2) -> dict[str, Any]:
    """int8 is faster at one stream and not at four; int4 is slower and smaller."""
    speeds = {"original": (30.0, 80.0), "int8": (45.0, 82.0), "awq-int4": (27.0, 60.0)}
    verdicts = {
        "int8": ((1.5, 1.42, 1.57), (1.03, 0.98, 1.08)),
        "awq-int4": ((0.9, 0.85, 0.95), (0.75, 0.7, 0.8)),
    }
    names = list(speeds)
    return {
        "schema": "graftwork.optimization.comparison/1",
        "machine": {"cpu": "A processor", "cores": 2, "date": "2026-11-22 13:00 UTC"},
        "rounds": {"measured": 12, "warm_up": 1, "seed": 0},
        "arms": [
            {"name": name, "weights_bytes": size}
            for name, size in zip(names, (269e6, 162e6, 120e6), strict=True)
        ],
        "levels": [
            {
                "concurrency": streams,
                "arms": {
                    name: _figures(speeds[name][at], 1e3 * streams / speeds[name][at], hour, streams)
                    for name in names
                },
            }
            for at, streams in enumerate((1, 4))
        ],
        "comparisons": [
            {
                "arm": name,
                "original": "original",
                "level": 0.01,
                "figures": {
                    f"{figure} at {streams}": _verdict(*verdicts[name][at])
                    for at, streams in enumerate((1, 4))
                    for figure in ("ttft_p50", "itl_p50", "tokens_per_s")
                },
            }
            for name in names[1:]
        ],
        "quality": {
            "arms": {
                name: {"texts": {"tokens": 999, "perplexity": 17.0 + at, "perplexity_ratio": 1 + at / 17}}
                for at, name in enumerate(names)
            },
            "samples": [
                {
                    "voice": "base",
                    "line": 1,
                    "prompt": "Name the capital of France.",
                    "answers": {
                        "original": "Paris.",
                        "int8": "Paris.",
                        "awq-int4": "It is Paris, <b>of course</b>.",
                    },
                },
                {
                    "voice": "base",
                    "line": 2,
                    "prompt": "Say nothing.",
                    "answers": {"original": "", "int8": "", "awq-int4": ""},
                },
            ],
        },
    }


def replayed() -> dict[str, Any]:
    """The same arms replaying a trace four times as fast: int8's first token comes sooner."""
    told = result(hour=None)
    told["levels"] = [{**told["levels"][-1], "concurrency": None, "speed": 4.0}]
    for name, answer in (("original", 900.0), ("int8", 700.0), ("awq-int4", 800.0)):
        figures = told["levels"][0]["arms"][name]
        figures["answer_ms"]["p50"], figures["throughput_by_formula"] = answer, None
    ratios = {"int8": (0.7, 0.6, 0.8), "awq-int4": (1.2, 1.1, 1.3)}
    for compared in told["comparisons"]:
        compared["figures"] = {
            "ttft_p50 at 4x": _verdict(*ratios[compared["arm"]]),
            "itl_p50 at 4x": _verdict(0.9, 0.7, 1.1),
            "tokens_per_s at 4x": _verdict(1.0, 0.99, 1.01),
        }
    return told


def preset_file() -> dict[str, Any]:
    """A file of `presets` for CPUs, from a run of the demo model. The recipes of two of the three presets are
    current; the third has changed since."""
    told = result()
    names = ("original", "lowest_cost", "lowest_latency", "balanced")
    told["arms"] = [
        {"name": name, "weights_bytes": size, "model": "smollm2-135m-instruct"}
        for name, size in zip(names, (269e6, 162e6, 162e6, 269e6), strict=True)
    ]
    for level in told["levels"]:
        level["arms"] = dict(zip(names, [*level["arms"].values(), level["arms"]["original"]], strict=True))
    figures = [item["figures"] for item in told["comparisons"]]
    told["comparisons"] = [
        {"arm": name, "original": "original", "figures": figures[at % 2]} for at, name in enumerate(names[1:])
    ]
    texts = [{"texts": {"perplexity": 17.0 + at, "perplexity_ratio": 1 + at / 17}} for at in range(4)]
    told["quality"]["arms"] = dict(zip(names, texts, strict=True))
    recipes = {name: preset(Preset(name), Target()) for name in names[1:]}
    stored = {
        name: {"recipe": recipe.to_dict(), "recipe_digest": recipe.digest, "output_digest": "d", "bytes": 1}
        for name, recipe in recipes.items()
    }
    stored["balanced"]["recipe_digest"] = "of another recipe"
    return {"schema": "graftwork.optimization.presets/1", "presets": stored, "comparison": told}
