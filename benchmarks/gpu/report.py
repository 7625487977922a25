"""A part's results on disk: rows by key, the runs that measured them, and what is left to do."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.task import Ceilings, Row


@dataclass
class Report:
    """`<part>.json` in the report's folder.

    Attributes:
        measured_on: "cuda" or "cpu"; rows of both never stand in one file.
        runs: machine and ceilings of each run, by which its rows are to be judged.
        rows: in the order in which they were made; each has `key` and `run`, an index of `runs`.
        left: keys that no run has come to yet.
    """

    path: Path
    part: str
    measured_on: str
    quick: bool
    runs: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, part: str, *, device: str, quick: bool, resume: bool) -> Report:
        """Starts anew, or goes on with what `folder` has.

        Raises:
            ValueError: the file to resume is of another device or another size of run.
        """
        report = cls(folder / f"{part}.json", part, device, quick)
        if resume and report.path.exists():
            held = json.loads(report.path.read_text())
            if (held["measured_on"], held["quick"]) != (device, quick):
                raise ValueError(
                    f"{report.path} has rows of --device {held['measured_on']}"
                    f"{' --quick' if held['quick'] else ''}; expected those of this run: give another --out"
                )
            report.runs, report.rows = held["runs"], held["rows"]
        return report

    @property
    def keys(self) -> set[str]:
        """Rows that need not be made again."""
        return {row["key"] for row in self.rows if not row.get("unfinished")}

    def begin(self, ceilings: Row) -> Ceilings:
        """Enters a run; the rows added from now on are its own."""
        self.runs.append({"ceilings": ceilings})
        return Ceilings(ceilings["bandwidth"], ceilings["matmul"])

    def add(self, row: Row) -> None:
        self.rows = [held for held in self.rows if held["key"] != row["key"]]
        self.rows.append(finite(row) | {"run": len(self.runs) - 1})
        self.write()

    def write(self) -> None:
        """Replaces the file as a whole: a run that is cut off leaves the rows that it had made."""
        value = {
            "part": self.part,
            "measured_on": self.measured_on,
            "quick": self.quick,
            "runs": self.runs,
            "left": self.left,
            "rows": self.rows,
        }
        aside = self.path.with_suffix(".part")
        aside.write_text(json.dumps(value, indent=1) + "\n")
        os.replace(aside, self.path)

    @property
    def failed(self) -> list[Row]:
        """Rows that say so, or that have no result at all."""
        return [row for row in self.rows if row.get("passed") is False or "error" in row]


def finite(value: Any) -> Any:
    """None for NaN and infinities, which JSON has not."""
    if isinstance(value, dict):
        return {name: finite(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def select(rows: Sequence[Row], /, **inputs: object) -> list[Row]:
    """The rows without error whose inputs have these values."""
    return [row for row in rows if "error" not in row and matches(row["inputs"], inputs)]


def matches(held: Mapping[str, Any], wanted: Mapping[str, object]) -> bool:
    return all(held.get(name) == value for name, value in wanted.items())
