"""The client address of a request, and the networks that contain it."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from contracts.addresses import MOST_HOPS, Networks, client_address, parse_network

PROXIES = Networks(["10.0.0.0/8", "2001:db8:ffff::/48"])


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("192.0.2.1", True),
        ("192.0.3.1", False),
        ("198.51.100.7", True),
        ("198.51.100.8", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_networks_of_both_families(address: str, inside: bool) -> None:
    networks = Networks(["192.0.2.0/24", "198.51.100.7", "2001:db8::/32"])
    assert (ip_address(address) in networks) == inside
    assert None not in networks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an address or network"),
        ("example.com", "not an address or network"),
        ("10.0.0.0/33", "not an address or network"),
        ("10.1.2.3/8", "write 10.0.0.0/8"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "write it as IPv4"),
    ],
)
def test_a_malformed_network_says_what_it_takes(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_network(text)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("::ffff:203.0.113.9", [], "203.0.113.9"),
        # Not from a proxy of ours: what the header says is the client's own invention.
        ("203.0.113.9", ["192.0.2.1"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        # The client's own entries come before those that our proxy appended.
        ("10.0.0.1", ["192.0.2.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1:4711"], "192.0.2.1"),
        ("2001:db8:ffff::1", ["[2001:db8::5]:443"], "2001:db8::5"),
        ("10.0.0.1", ["::ffff:192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["192.0.2.1, unknown"], None),
        ("10.0.0.1", ["192.0.2.1,"], None),
        ("10.0.0.1", [", ".join(["10.0.0.2"] * MOST_HOPS)], "10.0.0.2"),
        ("10.0.0.1", [", ".join(["192.0.2.1"] + ["10.0.0.2"] * MOST_HOPS)], None),
        ("", [], None),
    ],
)
def test_forwarded_addresses_are_believed_as_far_as_proxies_of_ours_wrote_them(
    peer: str, forwarded: list[str], expected: str | None
) -> None:
    found = client_address(peer, forwarded, PROXIES)
    assert (None if found is None else str(found)) == expected


def test_nobody_is_believed_unless_told() -> None:
    assert str(client_address("10.0.0.1", ["192.0.2.1"], Networks())) == "10.0.0.1"
