"""Settings from environment variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contracts.environment import EnvironmentReader, SettingsError


def test_unset_and_empty_variables_have_their_default() -> None:
    env = EnvironmentReader({"GRAFTWORK_NAME": "", "GRAFTWORK_URL": ""})
    assert env.text("NAME", "default") == "default"
    assert env.integer("PORT", 8001, 1, 65535) == 8001
    assert env.url("URL", ("https",), "") == ""
    assert env.words("LIST") == ()
    assert not env.flag("DEBUG")


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda env: env.integer("X", 1, 1, 9), "GRAFTWORK_X must be an integer from 1 to 9, got 'a b'"),
        (lambda env: env.flag("X"), "GRAFTWORK_X must be one of 0, 1, got 'a b'"),
        (lambda env: env.choice("X", ("off", "on")), "GRAFTWORK_X must be one of off, on, got 'a b'"),
        (lambda env: env.secret("X"), "GRAFTWORK_X must be ASCII without white space"),
        (
            lambda env: env.url("X", ("http",)),
            "GRAFTWORK_X must be a URL that begins with http://, got none://",
        ),
        (
            lambda env: env.url("Y", ("http",)),
            "GRAFTWORK_Y must be a URL that begins with http://, got none://",
        ),
        (lambda env: env.file("X"), "GRAFTWORK_X must be the path of a file, got 'a b'"),
    ],
)
def test_a_malformed_value_is_refused_with_the_accepted_ones(
    read: Callable[[EnvironmentReader], object], expected: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        read(EnvironmentReader({"GRAFTWORK_X": "a b"}))
    assert str(refusal.value) == expected


def test_only_an_unknown_name_of_this_process_is_refused() -> None:
    env = EnvironmentReader({"GRAFTWORK_WEB_PORTS": "1", "GRAFTWORK_WORKER_X": "1", "PATH": "/"})
    env.integer("WEB_PORT", 1, 0, 9)
    with pytest.raises(SettingsError, match=r"GRAFTWORK_WEB_PORTS is not a known setting.*WEB_PORT$"):
        env.refuse_unknown(("WORKER_",))
    env.refuse_unknown((), beginning="GATEWAY_")
