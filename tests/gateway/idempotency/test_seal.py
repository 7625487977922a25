"""Redis can neither read a sealed answer nor pass one off as another."""

from __future__ import annotations

import hashlib

import pytest

from gateway.idempotency.seal import Seal, StoredAnswer, Unreadable, _derive

ANSWER = StoredAnswer([(b"content-type", b"application/json")], b'{"text":"a secret of the tenant"}\n' * 20)


def test_what_is_closed_opens_again() -> None:
    sealed = Seal("secret").close("name", ANSWER)
    assert Seal("secret").open("name", sealed) == ANSWER
    assert b"secret" not in sealed
    assert sealed != Seal("secret").close("name", ANSWER), "a nonce is used once"


@pytest.mark.parametrize("at", [0, 12, -1])
def test_what_was_changed_does_not_open(at: int) -> None:
    sealed = bytearray(Seal("secret").close("name", ANSWER))
    sealed[at] ^= 1
    with pytest.raises(Unreadable):
        Seal("secret").open("name", bytes(sealed))


def test_it_opens_under_its_own_name_and_secret_only() -> None:
    sealed = Seal("secret").close("name", ANSWER)
    for secret, name in (("secret", "other"), ("other", "name")):
        with pytest.raises(Unreadable):
            Seal(secret).open(name, sealed)
    with pytest.raises(Unreadable):
        Seal("secret").open("name", b"short")


def test_each_purpose_has_a_secret_of_its_own() -> None:
    """The keys for answers and for fingerprints differ from each other and from the fleet's token."""
    keys = {_derive("secret", purpose) for purpose in (b"answers", b"prints")}
    keys |= {hashlib.sha256(b"secret").digest(), b"secret".ljust(32, b"\0")}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)


def test_names_tell_parts_apart_and_nothing_else() -> None:
    seal = Seal("secret")
    assert seal.name("a", "bc") != seal.name("ab", "c")
    assert seal.name("a", "b") == Seal("secret").name("a", "b") != Seal("other").name("a", "b")
    assert seal.fingerprint(b"x") != Seal("other").fingerprint(b"x")
