"""Configuration refuses what it does not understand."""

from __future__ import annotations

import pytest

from contracts.environment import SettingsError
from controlplane.platform.environment import Environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAFTWORK_REDISURL", "redis://localhost"),
        ("GRAFTWORK_REDIS_URL", "http://localhost"),
        ("GRAFTWORK_DEBUG", "yes"),
        ("GRAFTWORK_DATABASE_URL", "sqlite://relative.db"),
        ("GRAFTWORK_DATABASE_URL", "mysql://localhost/x"),
        ("GRAFTWORK_GATEWAY_URL", "http://localhost:8001"),
        ("GRAFTWORK_ARTIFACT_STORE", "ftp://host/x"),
        ("GRAFTWORK_IMPORT_ROOTS", "relative"),
        ("GRAFTWORK_API_RATE", "0"),
        ("GRAFTWORK_API_RATE", "many"),
    ],
)
def test_unknown_and_malformed_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Environment.from_env({name: value, "GRAFTWORK_SECRET_KEY": "x"})


@pytest.mark.parametrize(
    "other", [{"GRAFTWORK_EMAIL_URL": "smtp://mail.test"}, {"GRAFTWORK_WEB_URL": "https://graftwork.example"}]
)
def test_links_of_e_mails_are_shown_by_a_demo_alone(other: dict[str, str]) -> None:
    env = {"GRAFTWORK_SECRET_KEY": "x", "GRAFTWORK_SHOW_MAIL_LINKS": "1"}
    assert Environment.from_env(env | {"GRAFTWORK_WEB_URL": "http://localhost:8000"}).show_mail_links
    assert not Environment.from_env({"GRAFTWORK_SECRET_KEY": "x"}).show_mail_links
    with pytest.raises(SettingsError, match="GRAFTWORK_SHOW_MAIL_LINKS"):
        Environment.from_env(env | other)


def test_a_database_url_is_decoded() -> None:
    env = {
        "GRAFTWORK_SECRET_KEY": "x",
        "GRAFTWORK_DATABASE_URL": "postgresql://u:p%40w@db:6000/n?sslmode=require",
    }
    database = Environment.from_env(env).database()
    assert (database["USER"], database["PASSWORD"], database["HOST"]) == ("u", "p@w", "db")
    assert (database["PORT"], database["NAME"], database["OPTIONS"]) == ("6000", "n", {"sslmode": "require"})


def test_connections_are_kept_where_their_number_is_said() -> None:
    env = {"GRAFTWORK_SECRET_KEY": "x", "GRAFTWORK_DATABASE_URL": "postgresql://u@db/n?sslmode=require"}
    kept = Environment.from_env(env | {"GRAFTWORK_DATABASE_CONNECTIONS": "7"}).database()["OPTIONS"]
    assert (kept["sslmode"], kept["pool"]["max_size"]) == ("require", 7)
    sqlite = {"GRAFTWORK_SECRET_KEY": "x", "GRAFTWORK_DATABASE_CONNECTIONS": "7"}
    assert "pool" not in Environment.from_env(sqlite).database().get("OPTIONS", {})


def test_secrets_stay_out_of_texts() -> None:
    env = {
        "GRAFTWORK_SECRET_KEY": "hidden-1",
        "GRAFTWORK_DATABASE_URL": "postgresql://u:hidden-2@db/n",
        "GRAFTWORK_REDIS_URL": "redis://:hidden-3@redis/0",
        "GRAFTWORK_FLEET_TOKEN": "hidden-4",
    }
    assert "hidden" not in repr(Environment.from_env(env))
    with pytest.raises(SettingsError) as refusal:
        Environment.from_env(env | {"GRAFTWORK_DATABASE_URL": "mysql://u:hidden-5@db/n"})
    assert "hidden" not in str(refusal.value)
