"""Settings are refused loudly when they are malformed."""

from __future__ import annotations

import pytest

from gateway.settings import Settings, SettingsError

GOOD = {"GRAFTWORK_REDIS_URL": "redis://h:1/0", "GRAFTWORK_FLEET_TOKEN": "token"}


def test_defaults_and_values() -> None:
    settings = Settings.from_env({**GOOD, "GRAFTWORK_CORS_ORIGINS": "http://a:1, https://b"})
    assert settings.port == 8001
    assert settings.cors_origins == {"http://a:1", "https://b"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAFTWORK_REDIS_URL", ""),
        ("GRAFTWORK_REDIS_URL", "http://h"),
        ("GRAFTWORK_FLEET_TOKEN", ""),
        ("GRAFTWORK_FLEET_TOKEN", "a b"),
        ("GRAFTWORK_GATEWAY_PORT", "eighty"),
        ("GRAFTWORK_GATEWAY_PORT", "70000"),
        ("GRAFTWORK_GATEWAY_PROCESSES", "0"),
        ("GRAFTWORK_GATEWAY_STALE_SECONDS", "0"),
        ("GRAFTWORK_GATEWAY_STALE_SECONDS", "301"),
        ("GRAFTWORK_GATEWAY_ID", "a b"),
        ("GRAFTWORK_CORS_ORIGINS", "*"),
        ("GRAFTWORK_CORS_ORIGINS", "http://a/path"),
    ],
)
def test_a_malformed_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_env({**GOOD, name: value})


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**GOOD, "GRAFTWORK_FLEET_TOKEN": "hush hush"})
    assert "hush" not in str(caught.value)
