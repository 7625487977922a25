"""Django's own checks for production, with the settings that an operator makes for it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def check(tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")} | {
        "GRAFTWORK_DATABASE_URL": f"sqlite:///{tmp_path / 'deploy.db'}",
        "GRAFTWORK_SECRET_KEY": secrets.token_hex(32),
        "GRAFTWORK_WEB_URL": "https://models.example",
        "GRAFTWORK_ALLOWED_HOSTS": "models.example",
        **more,
    }
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.costly("runs `manage.py check`")
def test_production_settings_pass_djangos_checks(tmp_path: Path) -> None:
    result = check(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.costly("runs `manage.py check`")
def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    result = check(tmp_path, GRAFTWORK_DEBUG="1", GRAFTWORK_SECRET_KEY="short")
    assert result.returncode != 0
    assert "security.W009" in result.stderr
    assert "security.W018" in result.stderr
