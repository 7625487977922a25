"""Run `python -m optimizer` as a caller does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.recipes.progress import parse_line


@dataclass(frozen=True)
class Ended:
    status: int
    events: list[dict[str, Any]]
    stderr: str

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]


def command(kind: str, spec: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "optimizer", kind, str(spec), "--output", str(output)]


def start(kind: str, spec: Path, output: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(kind, spec, output), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def events_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield parse_line(line)


def end(process: subprocess.Popen[bytes], seconds: float = 120) -> Ended:
    out, error = process.communicate(timeout=seconds)
    return Ended(process.returncode, [parse_line(line) for line in out.splitlines()], error.decode())


def carry_out(kind: str, spec: Path, output: Path, seconds: float = 120) -> Ended:
    return end(start(kind, spec, output), seconds)


def write_order(path: Path, order: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"version": 1, **order}))
    return path
