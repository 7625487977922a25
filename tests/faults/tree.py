"""A copy of the tree in which faults are injected and tests run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[2]
LINKED: Final = (".venv", "var/models")
Verdict = Literal["passed", "failed", "timeout", "error"]
_VERDICTS: Final[dict[int, Verdict]] = {0: "passed", 1: "failed"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of tests came to: `error` if pytest ran none of them, such as an unknown test."""

    verdict: Verdict
    output: str

    @property
    def killed_by(self) -> str:
        """The first test that failed."""
        lines = (line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR ")))
        return next(lines, "").partition(" ")[2].partition(" - ")[0]


@dataclass(frozen=True, slots=True)
class Tree:
    """The copy's folder."""

    root: Path

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """`file` reads `text` meanwhile."""
        path = self.root / file
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    def test(self, tests: Sequence[str], *, seconds: float, environ: dict[str, str] | None = None) -> Outcome:
        """Run the tests, stopping at the first failure, and end all their processes after `seconds`."""
        # An import system that trusts a file's time would run what was compiled before the change.
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env={**os.environ, "CI": "true", "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Outcome("timeout", output)
        return Outcome(_VERDICTS.get(process.returncode, "error"), output)


@contextmanager
def copied() -> Iterator[Tree]:
    """A copy of the files that git tracks or would; large ones that it ignores are linked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="graftwork-faults-") as folder:
        root = Path(folder)
        for name in filter(None, listed.split("\0")):
            if (source := ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, root / name)
        for name in LINKED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if not (root / name).exists():
                (root / name).symlink_to((ROOT / name).resolve())
        yield Tree(root)
