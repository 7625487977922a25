"""The worker's command line refuses what would be unsafe."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_engine.errors import ConfigError
from worker_engine.program import parse_config

FLAGS = ["--model", "m", "--served-model-name", "m"]


def test_no_token_no_outside_address() -> None:
    with pytest.raises(ConfigError, match="GRAFTWORK_FLEET_TOKEN"):
        parse_config([*FLAGS, "--host", "0.0.0.0"], {})
    assert parse_config(FLAGS, {}).fleet_token == ""
    served = parse_config([*FLAGS, "--host", "0.0.0.0"], {"GRAFTWORK_FLEET_TOKEN": "t"})
    assert served.fleet_token == "t"
    trusting = parse_config([*FLAGS, "--host", "0.0.0.0"], {"GRAFTWORK_TRUST_NETWORK": "yes"})
    assert trusting.fleet_token == ""
    with pytest.raises(ConfigError, match="GRAFTWORK_FLEET_TOKEN"):
        parse_config([*FLAGS, "--host", "0.0.0.0"], {"GRAFTWORK_TRUST_NETWORK": "no"})


def test_a_flags_beginning_is_not_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config([*FLAGS, "--adapters", "/"], {})
    assert "unrecognized arguments: --adapters" in capsys.readouterr().err


def test_the_adapters_folder_must_be_there() -> None:
    with pytest.raises(ConfigError, match="--adapters-dir"):
        parse_config([*FLAGS, "--adapters-dir", "/nowhere"], {})


def test_a_missing_folder_of_tuned_configurations_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAFTWORK_TUNED_CONFIG_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere is not a folder; unset it"):
        parse_config(FLAGS, {})
