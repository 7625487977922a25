"""The Prometheus text format: one answer with all processes' metrics, from whichever process is asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

from gateway.observability.cells import Snapshot
from gateway.observability.families import (
    ADAPTER_CELLS,
    ADAPTER_TEXTS,
    ADAPTERS,
    FAMILIES,
    OTHERS,
    PREFIX,
    SCHEMA,
    Family,
)

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


def render(root: Path) -> bytes:
    """Render the metrics of all log slots below `root`; reads files, so not for the event loop.

    Counters and histograms are summed, including ended processes. Gauges and adapters' series carry
    `process`: a sum of gauges makes no sense, and each process has its own set of adapters.
    """
    sums: dict[str, dict[str, list[float]]] = defaultdict(dict)
    adapters: dict[str, list[str]] = defaultdict(list)
    for snapshot in Snapshot.all(root, SCHEMA):
        for series, values in snapshot.series():
            if series.family == ADAPTERS:
                name = snapshot.name(int(series.labels)) if series.labels else OTHERS
                _add_adapter(adapters, f'adapter="{name}",process="{snapshot.process}"', name, values)
                continue
            family = _BY_NAME[series.family]
            if family.kind != "gauge":
                before = sums[family.name].get(series.labels)
                summed = values if before is None else [a + b for a, b in zip(before, values, strict=True)]
                sums[family.name][series.labels] = summed
            elif snapshot.alive and not math.isnan(values[0]):
                labels = _joined(series.labels, f'process="{snapshot.process}"')
                sums[family.name][labels] = values
    parts = [_family(family, sums[family.name]) for family in FAMILIES if sums[family.name]]
    by_adapter = [
        _block(name, kind, text, adapters[name]) for name, kind, text in ADAPTER_TEXTS if adapters[name]
    ]
    return "".join([*parts, *by_adapter]).encode()


_BY_NAME: Final = {family.name: family for family in FAMILIES}


def _add_adapter(lines: dict[str, list[str]], labels: str, name: str, values: list[float]) -> None:
    if not name or math.isnan(values[0]) or not (values[0] or values[1]):
        return
    for (metric, kind), value in zip(ADAPTER_CELLS, values, strict=True):
        family = metric.removesuffix("_sum").removesuffix("_count")
        lines[family].append(f"{PREFIX}{metric}{{{_joined(labels, kind)}}} {_number(value)}")


def _family(family: Family, series: dict[str, list[float]]) -> str:
    lines: list[str] = []
    for labels, values in sorted(series.items()):
        if family.bounds:
            lines += _histogram(family, labels, values)
        else:
            lines.append(_line(family.name, labels, values[0]))
    return _block(family.name, family.kind, family.text, lines)


def _histogram(family: Family, labels: str, values: list[float]) -> Iterator[str]:
    *counts, total = values
    below = 0.0
    for bound, below in zip((*family.bounds, "+Inf"), accumulate(counts), strict=True):
        yield _line(family.name + "_bucket", _joined(labels, f'le="{bound}"'), below)
    yield _line(family.name + "_sum", labels, total)
    yield _line(family.name + "_count", labels, below)


def _line(name: str, labels: str, value: float) -> str:
    return f"{PREFIX}{name}{{{labels}}} {_number(value)}" if labels else f"{PREFIX}{name} {_number(value)}"


def _joined(*labels: str) -> str:
    return ",".join(label for label in labels if label)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _block(name: str, kind: str, text: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}", *lines, ""])
