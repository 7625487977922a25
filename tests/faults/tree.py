"""A copy of a checkout in a temporary folder, whose source may be changed, and pytest runs in the copy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LINKED: Final = (".venv", "var/models")
"""Not in git, needed by tests, and never written by them."""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
# Each test counts, whatever its cost: a busy machine must not make the budget of CPU time fail.
_OPTIONS: Final = (
    "-q",
    "-n",
    "0",
    "-m",
    "not slow",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:tests.budget",
)


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of one pytest run.

    Attributes:
        code: pytest's exit status; None when the run exceeded its time limit.
        failed: ids of the failed tests, in order.
        output: what pytest wrote.
    """

    __test__ = False

    code: int | None
    failed: tuple[str, ...]
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        return self.code == 0


class TreeCopy:
    """The tracked files of a checkout, copied to `folder`."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.folder = folder
        self._modified = int(time.time())
        for name in tracked_files(checkout):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, target, follow_symlinks=False)
        for name in LINKED:
            if (checkout / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to((checkout / name).resolve())

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """Give the file `name` another text, until the context ends."""
        before = (self.folder / name).read_bytes()
        try:
            self._write(name, text.encode())
            yield
        finally:
            self._write(name, before)

    def _write(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(data)
        # Python takes a compiled module for current by the source's size and its time in whole seconds.
        self._modified += 1
        os.utime(self.folder / name, (self._modified, self._modified))

    def test(self, tests: Sequence[str], *options: str, limit: float) -> TestRun:
        """Run tests with pytest in the copy, for at most `limit` seconds."""
        command = [sys.executable, "-m", "pytest", *_OPTIONS, *options, *tests]
        if (self.folder / "tests/databases.py").exists():
            command += ["--database", "sqlite"]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, code = process.communicate(timeout=limit)[0], process.returncode
            except subprocess.TimeoutExpired:
                # Servers that tests started go with their session.
                os.killpg(process.pid, signal.SIGKILL)
                output, code = process.communicate()[0], None
        return TestRun(code, tuple(_FAILED.findall(output)), time.monotonic() - began, output)


def tracked_files(checkout: Path) -> list[str]:
    """Return the paths of the checkout's tracked files that exist, relative to it and sorted."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True
    ).stdout
    return sorted(name for name in listing.split("\0") if name and os.path.lexists(checkout / name))


@contextmanager
def tree_copy(checkout: Path) -> Iterator[TreeCopy]:
    """Copy a checkout to a temporary folder that is removed at the end."""
    with TemporaryDirectory(prefix="graftwork-faults-", ignore_cleanup_errors=True) as folder:
        yield TreeCopy(checkout, Path(folder))
