"""The closing lines of a run: short, because the end of the output is what a remote run shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu.report import Report
from benchmarks.gpu.task import Goal, Row

MOST_FAILURES = 12
MOST_LEFT = 3
WIDTH = 110


def lines(report: Report, goals: Sequence[Goal], summary: Sequence[str]) -> Iterator[str]:
    """The part's own summary, what failed, what is left, goals met and missed."""
    where = "a GPU" if report.measured_on == "cuda" else "a CPU: NOT GPU figures"
    yield f"== part {report.part}, measured on {where}"
    yield from _machine(report)
    yield from summary
    failed = report.failed
    for row in failed[:MOST_FAILURES]:
        yield f"FAILED {row['key']}: {_reason(row)}"[:WIDTH]
    if len(failed) > MOST_FAILURES:
        yield f"FAILED and {len(failed) - MOST_FAILURES} more, see {report.part}.json"
    if report.left:
        names = ", ".join(report.left[:MOST_LEFT]) + (" ..." if len(report.left) > MOST_LEFT else "")
        yield f"LEFT {len(report.left)} rows for --resume: {names}"[:WIDTH]
    for goal in goals:
        verdict = {True: "MET", False: "MISSED", None: "OPEN"}[goal.met]
        yield f"{verdict:<7}{goal.name}: {goal.value}"
    yield f"rows {len(report.rows)}, failed {len(failed)}, left {len(report.left)}"


def _machine(report: Report) -> Iterator[str]:
    if not report.runs:
        return
    ceilings = report.runs[-1]["ceilings"]
    machine = ceilings["machine"]
    if gpu := machine.get("gpu"):
        yield (
            f"{gpu['name']}, {gpu['multiprocessors']} SMs, L2 {gpu['l2_bytes'] >> 20} MiB, "
            f"driver {gpu['driver']}, CUDA {gpu['cuda']}"
        )
    versions = ", ".join(f"{name} {machine['libraries'].get(name)}" for name in ("torch", "triton"))
    yield (
        f"{versions}; copy {ceilings['bandwidth'] / 1e9:,.0f} GB/s, "
        f"matmul {ceilings['matmul'] / 1e12:,.1f} TFLOP/s"
    )


def _reason(row: Row) -> str:
    return str(row.get("error") or row.get("reason") or "").splitlines()[0] if row else ""
