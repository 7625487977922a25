"""A comparison's result as a ranked table, bars with intervals, and the frontier of price and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Final

_HUES: Final = ("var(--chart-1)", "var(--chart-2)", "var(--chart-3)", "var(--muted)")
_SHAPES: Final = ("circle", "square", "diamond")
WIDTH: Final = 460
HEIGHT: Final = 260
"""In the chart's own units: the drawing scales with the page."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 16, 18, 40
_BAR_WIDTH: Final = 400


@dataclass(frozen=True, slots=True)
class Point:
    """One arm at one number of streams, in the chart's coordinates."""

    arm: str
    streams: int
    latency_ms: float
    worth: float
    x: float = 0.0
    y: float = 0.0
    hue: str = ""
    shape: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Frontier:
    """A scatter chart. `priced`: the y axis is the price of a million tokens, else tokens/s."""

    points: list[Point]
    line: str
    priced: bool
    currency: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    legend: list[tuple[str, str, str]] = field(default_factory=list)


def ranked(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms at the highest load, the cheapest first, or the fastest if there is no price.

    For a replay, whose tokens/s are the trace's, the arm with the fastest answers comes first.
    """
    level = result["levels"][-1]
    load = load_name(level)
    verdicts = {item["arm"]: item["figures"] for item in result["comparisons"]}
    sizes = {arm["name"]: arm for arm in result["arms"]}
    rows = []
    for name, figures in level["arms"].items():
        measured = verdicts.get(name, {})
        rows.append(
            {
                "name": name,
                "streams": level["concurrency"],
                "pace": level.get("speed"),
                "figures": figures,
                "price": _price(figures),
                "speed": measured.get(f"{'ttft_p50' if level.get('speed') else 'tokens_per_s'} at {load}"),
                "weights": sizes.get(name, {}).get("weights_bytes"),
                "memory": sizes.get(name, {}).get("memory", {}).get("peak_bytes"),
                "quality": result.get("quality", {}).get("arms", {}).get(name, {}),
            }
        )
    priced = all(row["price"] is not None for row in rows)

    def sort_key(row: dict[str, Any]) -> float:
        if priced:
            return float(row["price"][0])
        figures = row["figures"]
        return float(figures["answer_ms"]["p50"] if row["pace"] else -figures["tokens_per_s"])

    return sorted(rows, key=sort_key)


def load_name(level: Mapping[str, Any]) -> str:
    """Return the load's name in the result: 4 for streams, 4x for a trace at four times its speed."""
    return f"{level['speed']:g}x" if level.get("speed") else str(level["concurrency"])


def sweep(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every arm at every load: its measurements, and its ratios to the original."""
    verdicts = {item["arm"]: item["figures"] for item in result["comparisons"]}
    found = []
    for level in result["levels"]:
        load = load_name(level)
        for name, figures in level["arms"].items():
            ratios = verdicts.get(name, {})
            times = [
                (figures[f"{figure}_ms"], ratios.get(f"{figure}_p50 at {load}")) for figure in ("ttft", "itl")
            ]
            found.append({"arm": name, "load": load, "figures": figures, "times": times})
    return found


def bars(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each arm's speed relative to the original, by load: a bar, its 95% interval, and the verdict.

    For a replay it is the time to first token, lower is better. The scale is logarithmic, so that half and
    twice are equally far from the original.
    """
    replayed = bool(result["levels"][-1].get("speed"))
    wanted = "ttft_p50 at " if replayed else "tokens_per_s at "
    found = [
        (item["arm"], name.rpartition(" at ")[2], figure)
        for item in result["comparisons"]
        for name, figure in item["figures"].items()
        if name.startswith(wanted)
    ]
    ends = [abs(log(figure[end])) for _, _, figure in found for end in ("low", "high") if figure[end] > 0]
    reach = max([*ends, log(1.1)]) * 1.05

    def position(ratio: float) -> float:
        return _BAR_WIDTH * (0.5 + log(max(ratio, 1e-6)) / reach / 2)

    found.sort(key=lambda item: item[2]["ratio"] if replayed else -item[2]["ratio"])
    return [
        {
            "arm": arm,
            "load": load,
            "replayed": replayed,
            "figure": figure,
            "width": _BAR_WIDTH,
            "x": min(position(figure["ratio"]), _BAR_WIDTH / 2),
            "length": abs(position(figure["ratio"]) - _BAR_WIDTH / 2),
            "middle": _BAR_WIDTH / 2,
            "low": max(position(figure["low"]), 0.0),
            "high": min(position(figure["high"]), float(_BAR_WIDTH)),
            "better": figure["ratio"] <= 1 if replayed else figure["ratio"] >= 1,
            "shown": figure["verdict"] == "difference shown",
        }
        for arm, load, figure in found
    ]


def frontier(result: Mapping[str, Any]) -> Frontier | None:
    """Return price or throughput over one user's latency; None without measurements, and for a replay, whose
    throughput is the trace's."""
    points, currency = _points(result)
    if not points or result["levels"][-1].get("speed"):
        return None
    priced = currency != ""
    names = list(dict.fromkeys(point.arm for point in points))
    x_scale = _Scale([point.latency_ms for point in points], _LEFT, WIDTH - _RIGHT)
    y_scale = _Scale([point.worth for point in points], HEIGHT - _BOTTOM, _TOP)
    best = _undominated(points, priced)
    placed = [
        Point(
            point.arm,
            point.streams,
            point.latency_ms,
            point.worth,
            x_scale(point.latency_ms),
            y_scale(point.worth),
            *_mark(names.index(point.arm)),
            point in best,
        )
        for point in points
    ]
    along = sorted((point for point in placed if point.best), key=lambda point: point.x)
    line = " ".join(f"{point.x:.1f},{point.y:.1f}" for point in along)
    legend = [(name, *_mark(index)) for index, name in enumerate(names)]
    return Frontier(placed, line, priced, currency, x_scale.ticks(), y_scale.ticks(), legend)


def adapters(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return by adapter and arm how the optimized base model changes the adapter's own answers."""
    names = [arm["name"] for arm in result["arms"]]
    quality = result.get("quality", {})
    voices = [name for name in quality.get("prompts", {}) if name != "base"]
    found = []
    for voice in voices:
        for arm in names[1:]:
            effects = quality["arms"].get(arm, {})
            if voice in effects:
                change = effects.get("changes", {}).get(f"{voice}: log perplexity")
                found.append({"adapter": voice, "arm": arm, **effects[voice], "change": change})
    return found


def samples(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return answers side by side: the prompt, and each arm's answer, compared with the original's."""
    names = [arm["name"] for arm in result["arms"]]
    found = []
    for sample in result.get("quality", {}).get("samples", []):
        answers = sample["answers"]
        first = answers.get(names[0], "")
        compared = [(name, answers[name], answers[name] == first) for name in names if name in answers]
        found.append({"prompt": sample["prompt"], "voice": sample.get("voice", "base"), "answers": compared})
    return found


def _points(result: Mapping[str, Any]) -> tuple[list[Point], str]:
    found, currencies, unpriced = list[Point](), set[str](), list[Point]()
    for level in result["levels"]:
        for name, figures in level["arms"].items():
            latency = figures["itl_ms"].get("p50") or 0.0
            if latency <= 0:
                continue
            unpriced.append(Point(name, level["concurrency"], latency, figures["tokens_per_s"]))
            if (price := _price(figures)) is not None:
                currencies.add(price[1])
                found.append(Point(name, level["concurrency"], latency, price[0]))
    if len(found) == len(unpriced) and len(currencies) == 1:
        return found, currencies.pop()
    return unpriced, ""


def _undominated(points: Sequence[Point], priced: bool) -> list[Point]:
    """Return the Pareto-optimal points: no other is both at least as fast and as cheap (or as productive)."""

    def worth(point: Point) -> float:
        return -point.worth if priced else point.worth

    return [
        point
        for point in points
        if not any(
            other.latency_ms <= point.latency_ms
            and worth(other) >= worth(point)
            and (other.latency_ms, other.worth) != (point.latency_ms, point.worth)
            for other in points
        )
    ]


def _price(figures: Mapping[str, Any]) -> tuple[float, str] | None:
    for item in figures.get("blended", []):
        if item["by"] == "throughput":
            return float(item["per_million"]), str(item["currency"])
    return None


def _mark(index: int) -> tuple[str, str]:
    return _HUES[index % len(_HUES)], _SHAPES[index // len(_HUES) % len(_SHAPES)]


class _Scale:
    """A linear axis from `start` to `end` pixels, slightly wider than its values."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
        self._low, self._high, self._start, self._end = max(low - room, 0.0), high + room, start, end

    def __call__(self, value: float) -> float:
        part = (value - self._low) / (self._high - self._low)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        step = (self._high - self._low) / 4
        return [(self(self._low + step * index), f"{self._low + step * index:.3g}") for index in range(5)]
