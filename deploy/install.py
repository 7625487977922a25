"""Install Graftwork's packages into a virtual environment: `install.py demo|all [--venv FOLDER]`.

`demo` is what `make demo` needs; `all` adds what tests, training and development need. It runs on Python's
standard library alone, and uses uv if it is installed, else pip. TORCH_INDEX=<url> takes PyTorch from another
index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_ROLES: Final = {"demo": {"gateway", "controlplane", "worker", "demo", "build"}}
"""Roles of the lock that a scope needs; another scope needs all."""
_FOR_GPU: Final = ("triton",)
"""Locked packages that only a machine with an NVIDIA GPU, or `all`, needs."""
_EVERY_S: Final = 2.0
_POLL_S: Final = 0.2
_PIP: Final = ("--disable-pip-version-check", "--no-input")
_PROBE: Final = ("--timeout", "2", "--retries", "0")
_LAST_LINES: Final = 20
"""Lines of a failed command's output to print."""
_ABOUT_S: Final = 45
"""Seconds of the whole installation on two cores of 2023 with a fast connection."""


class InstallError(Exception):
    """The installation failed; the text says what to do."""


class Progress:
    """Prints what is being done: one line that is rewritten on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._printed = 0.0
        self._is_terminal = sys.stdout.isatty()

    def show(self, text: str, *, last: bool = False) -> None:
        """Print the text and the seconds since the start. `last` ends the line."""
        now = time.monotonic()
        if not last and now - self._printed < (0.2 if self._is_terminal else _EVERY_S):
            return
        self._printed = now
        line = f"    {text}, {now - self._started:.0f} s"
        if self._is_terminal:
            print(f"\r\033[K{line}", end="\n" if last else "", flush=True)
        else:
            print(line, flush=True)


def locked(scope: str, *, gpu: bool) -> str:
    """Return the part of requirements.txt that the scope needs, with its hashes."""
    lock = (ROOT / "requirements.txt").read_text()
    found = []
    for roles, pin in re.findall(r"^# for (.+)\n((?:[^#].*\n)+)", lock, re.MULTILINE):
        needed = scope not in _ROLES or _ROLES[scope] & set(roles.split(", "))
        if needed and (gpu or scope not in _ROLES or pin.partition("==")[0] not in _FOR_GPU):
            found.append(pin)
    return "".join(found)


def has_nvidia_gpu() -> bool:
    """Return True if this machine has an NVIDIA GPU with a driver."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


class Installer:
    """Installs into the virtual environment `venv`, with uv if this machine has it."""

    def __init__(self, venv: Path, progress: Progress) -> None:
        self._venv, self._progress = venv, progress
        self._python = venv / "bin" / "python"
        self._uv = shutil.which("uv")

    def environment(self) -> None:
        """Create the virtual environment, unless it exists."""
        if self._python.exists():
            return
        command = [sys.executable, "-m", "venv", str(self._venv)]
        if self._run(command, lambda _: "virtual environment")[0] != 0:
            raise InstallError("python3 -m venv failed: on Debian, apt-get install python3-venv")

    def packages(self, requirements: str) -> None:
        """Install locked packages, each with its hash checked."""
        count = len(re.findall(r"^\S+==", requirements, re.MULTILINE))

        def about(log: str) -> str:
            if "Installing collected packages" in log:
                return f"{min(self._installed(), count)} of {count} packages installed"
            if collected := log.count("Collecting "):
                return f"{collected} of {count} packages downloaded"
            return f"{count} packages"  # uv says no more

        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(requirements)
            file.flush()
            self._install(["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", file.name], about)

    def torch(self, *, gpu: bool) -> None:
        """Install PyTorch: the CPU build on a machine without an NVIDIA GPU, if an index offers it."""
        version = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert version is not None
        index = os.environ.get("TORCH_INDEX", "")
        # That index is asked for torch alone: it could offer any package under a name that we install.
        where = ["--no-deps", "--index-url", index] if index else []
        if not gpu and sys.platform == "linux":
            probe = ["--no-deps", *where, *([] if index else _PROBE), f"torch=={version[1]}+cpu"]
            if self._install(probe, lambda _: "PyTorch (CPU build)", must=False, pip_only=True):
                return
            self._progress.show(
                "no index offers PyTorch's CPU build: its default build may take 3 GB more "
                "(TORCH_INDEX=<index of CPU wheels> saves them)",
                last=True,
            )
        self._install([*where, f"torch=={version[1]}"], lambda _: "PyTorch", pip_only=True)

    @contextmanager
    def model(self) -> Iterator[None]:
        """Set up the demo model during the block, which needs numpy alone."""
        if os.environ.get("GRAFTWORK_DEMO_MODEL"):
            yield
            return
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen([self._python, "-m", "demo.model"], cwd=ROOT, stdout=log, stderr=log)
            try:
                yield
                while process.poll() is None:
                    self._progress.show("demo model")
                    time.sleep(_POLL_S)
            finally:
                process.terminate()
                process.wait()
            self._progress.show("demo model", last=True)
            # `make` sets it up again if this failed, and prints why.

    def project(self) -> None:
        """Install this checkout and its Python client as editable packages."""
        options = ["--no-deps", "--no-build-isolation", "-e", ".", "-e", "clients/python"]
        self._install(options, lambda _: "Graftwork", pip_only=True)

    def _installed(self) -> int:
        return sum(1 for _ in self._venv.glob("lib/python3*/site-packages/*.dist-info")) - 1

    def _install(
        self,
        options: Sequence[str],
        about: Callable[[str], str],
        *,
        must: bool = True,
        pip_only: bool = False,
    ) -> bool:
        pip = [str(self._python), "-m", "pip", "install", *_PIP, "--no-compile"]
        commands = [[*pip, *options]]
        # uv does not read pip's configuration, so pip stays for what depends on it, and where uv fails.
        if self._uv and not pip_only:
            commands.insert(
                0, [self._uv, "pip", "install", "--quiet", "--python", str(self._python), *options]
            )
        for command in commands:
            status, errors = self._run(command, about)
            if status == 0:
                return True
        if must:
            raise InstallError(
                f"{errors.strip()}\n{' '.join(commands[-1][:4])} failed: check the connection, then repeat"
            )
        return False

    def _run(self, command: Sequence[str], about: Callable[[str], str]) -> tuple[int, str]:
        with tempfile.NamedTemporaryFile("w") as output, Path(output.name).open() as log:
            # Python writes a file in large blocks, which would hide the progress.
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
            text = ""
            try:
                while process.poll() is None:
                    text += log.read()
                    self._progress.show(about(text))
                    time.sleep(_POLL_S)
            except BaseException:
                process.terminate()
                process.wait()
                raise
            text += log.read()
            if process.returncode == 0:
                self._progress.show(about(text), last=True)
            return process.returncode, "\n".join(text.splitlines()[-_LAST_LINES:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Install; return the exit status."""
    parser = argparse.ArgumentParser(prog="install.py", description="Installs Graftwork's packages.")
    parser.add_argument("scope", choices=("demo", "all"))
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args(arguments)
    gpu, progress = has_nvidia_gpu(), Progress()
    print(f"==> packages (about {_ABOUT_S} s with a fast connection)", flush=True)
    installer = Installer(options.venv, progress)
    try:
        installer.environment()
        installer.packages(locked(options.scope, gpu=gpu))
        with installer.model():
            installer.torch(gpu=gpu)
            installer.project()
    except InstallError as error:
        print(f"\ninstall: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
