"""Settings are refused loudly when they are malformed."""

from __future__ import annotations

import pytest

from contracts.environment import SettingsError
from gateway.settings import Settings

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
        ("GRAFTWORK_GATEWAY_PORTS", "8001"),
        ("GRAFTWORK_GATEWAY_PORT", "eighty"),
        ("GRAFTWORK_GATEWAY_PORT", "70000"),
        ("GRAFTWORK_GATEWAY_PROCESSES", "0"),
        ("GRAFTWORK_GATEWAY_QUEUE_SECONDS", "601"),
        ("GRAFTWORK_GATEWAY_QUEUE_LENGTH", "-1"),
        ("GRAFTWORK_GATEWAY_STALE_SECONDS", "0"),
        ("GRAFTWORK_GATEWAY_STALE_SECONDS", "301"),
        ("GRAFTWORK_GATEWAY_ID", "a b"),
        ("GRAFTWORK_GATEWAY_METRICS_TOKEN", "a b"),
        ("GRAFTWORK_GATEWAY_METRICS_ADAPTERS", "1001"),
        ("GRAFTWORK_GATEWAY_ACCESS_LOG", "yes"),
        ("GRAFTWORK_GATEWAY_LOG_FORMAT", "xml"),
        ("GRAFTWORK_GATEWAY_LOG_LEVEL", "info"),
        ("GRAFTWORK_CORS_ORIGINS", "*"),
        ("GRAFTWORK_CORS_ORIGINS", "http://a/path"),
        ("GRAFTWORK_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("GRAFTWORK_TRUSTED_PROXIES", "load-balancer"),
        ("GRAFTWORK_GATEWAY_CONNECTIONS", "0"),
        ("GRAFTWORK_GATEWAY_HEADER_SECONDS", "0"),
        ("GRAFTWORK_GATEWAY_BODY_SECONDS", "never"),
        ("GRAFTWORK_GATEWAY_BODY_BYTES", "10"),
        ("GRAFTWORK_GATEWAY_IMAGE_HOSTS", "https://images.example.com"),
        ("GRAFTWORK_GATEWAY_IMAGE_HOSTS", "images.example.com,*.example.com"),
        ("GRAFTWORK_GATEWAY_IMAGE_HOSTS", "Images.example.com"),
        ("GRAFTWORK_GATEWAY_IMAGE_HOSTS", "images.example.com:8443"),
        ("GRAFTWORK_GATEWAY_STALL_SECONDS", "0"),
        ("GRAFTWORK_GATEWAY_DRAIN_SECONDS", "0"),
        ("GRAFTWORK_GATEWAY_TLS_CERT", "/nowhere.pem"),
        ("GRAFTWORK_GATEWAY_TLS_CERT", __file__),
        ("GRAFTWORK_GATEWAY_TLS_CLIENT_CA", __file__),
        ("GRAFTWORK_GATEWAY_TLS_MIN_VERSION", "1.1"),
        ("GRAFTWORK_GATEWAY_BACKEND_CA", "/nowhere.pem"),
    ],
)
def test_a_malformed_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_env({**GOOD, name: value})


def test_secrets_do_not_stand_in_the_settings_text() -> None:
    secrets = {
        "GRAFTWORK_REDIS_URL": "redis://:hush1@h:1/0",
        "GRAFTWORK_FLEET_TOKEN": "hush2",
        "GRAFTWORK_OPENAI_HTTP_KEY": "hush3",
    }
    assert "hush" not in repr(Settings.from_env(secrets))


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**GOOD, "GRAFTWORK_FLEET_TOKEN": "hush hush"})
    assert "hush" not in str(caught.value)
