"""The roofline as a picture: each row's rate over its arithmetic intensity, under the measured ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.report import Report
from benchmarks.gpu.task import Row

NAME: Final = "roofline.png"
PRODUCTS: Final = ("lora", "attention", "linear", "layers")
"""Ops with colours of their own; the others do a few operations a value."""
COLOURS: Final = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5fbf", "#b07d12", "#4a4a4a")


def draw(report: Report) -> Path | None:
    """Writes the part's picture beside its JSON; None when no row was timed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in report.rows if "roofline_us" in row and "bytes" in row]
    if not rows:
        return None
    figure, (rates, ratios) = pyplot.subplots(1, 2, figsize=(15, 6.5), layout="constrained")
    figure.suptitle(title(report, rows), fontsize=12)
    _rates(rates, report, rows)
    _ratios(ratios, rows)
    path = report.path.with_name(NAME if report.part == "kernels" else f"{report.part}-{NAME}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def title(report: Report, rows: list[Row]) -> str:
    machine = report.runs[-1]["ceilings"]["machine"]
    if report.measured_on == "cuda":
        return f"{machine['gpu']['name']}, {len(rows)} rows, bf16"
    return f"MEASURED ON A CPU ({machine['cpu']}), tiny shapes, not on a GPU: {len(rows)} rows"


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        op, phase = row["inputs"]["op"], row["inputs"]["phase"]
        name = f"{op}, {phase}" if op in PRODUCTS else "norms, rotation, activation"
        groups.setdefault(name, []).append(row)
    return groups


def _rates(axes: Any, report: Report, rows: list[Row]) -> None:
    ceilings = report.runs[-1]["ceilings"]
    bandwidth, matmul = ceilings["bandwidth"], ceilings["matmul"]
    intensity = [row["flops"] / row["bytes"] for row in rows]
    ridge = matmul / bandwidth
    span = [min(*intensity, ridge) / 2, max(*intensity, ridge) * 4]
    axes.loglog([span[0], ridge, span[1]], [span[0] * bandwidth, matmul, matmul], color="black", lw=1.5)
    axes.annotate(
        f"{bandwidth / 1e9:,.0f} GB/s copy", (ridge / 4, ridge / 4 * bandwidth), ha="right", va="bottom"
    )
    axes.annotate(f"{matmul / 1e12:.3g} TFLOP/s bf16", (ridge, matmul * 1.15), ha="center")
    for (name, group), colour in zip(_groups(rows).items(), COLOURS, strict=False):
        x = [row["flops"] / row["bytes"] for row in group]
        axes.scatter(x, [_rate(row, row) for row in group], s=22, color=colour, alpha=0.75, label=name)
    peers = [row for row in rows if "time_us" in row.get("peer", {})]
    if peers:
        x = [row["flops"] / row["bytes"] for row in peers]
        y = [_rate(row, row["peer"]) for row in peers]
        axes.scatter(x, y, s=16, marker="x", lw=0.8, color="#999999", label="vLLM, same inputs", zorder=0)
    axes.set(xlabel="FLOP per byte (counted)", ylabel="FLOP/s", title="Rate under the measured ceilings")
    axes.grid(alpha=0.25, which="both", lw=0.4)
    axes.legend(loc="lower right", fontsize=9)


def _rate(row: Row, timed: Row) -> float:
    return float(row["flops"] / timed["time_us"]["median"] * 1e6)


def _ratios(axes: Any, rows: list[Row]) -> None:
    for (name, group), colour in zip(_groups(rows).items(), COLOURS, strict=False):
        x = [row["roofline_us"] for row in group]
        axes.scatter(x, [row["roofline_ratio"] for row in group], s=22, color=colour, alpha=0.75, label=name)
    if all(row["measured_on"] == "cuda" for row in rows):
        axes.axhline(1.15, color="black", lw=1, ls="--")
        place = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        axes.annotate("goal 1.15 past 20 us", (0.01, 1.16), **place)
    axes.axhline(1.0, color="black", lw=1)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="roofline time of the row, us",
        ylabel="measured time / roofline time",
        title="How far from the roofline",
    )
    axes.grid(alpha=0.25, which="both", lw=0.4)
    axes.legend(loc="upper right", fontsize=9)
