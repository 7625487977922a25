"""The list of pages covers every URL: each one is a page in the list, or is no page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse

from controlplane.console.urls import tenant_urls, urlpatterns
from controlplane.tenants.roles import Role
from tests.controlplane.open_pages import ANYONE, ONESELF
from tests.controlplane.staff_pages import STAFF_PAGES as STAFF_ADDRESSES
from tests.controlplane.world import OWN, World
from tests.ui import pages

pytestmark = pytest.mark.django_db(transaction=True)

UNSEEN: dict[str, str] = {}
"""Addresses of ours that do not answer a GET in this world -> why no page is missed by that."""
OURS = {str(pattern.name) for pattern in tenant_urls} | set(STAFF_ADDRESSES)
_NO_PAGE = (200, 204, 302, 405)
"""Fragments and files; nothing; ways on; actions."""


def addresses(world: World) -> Iterator[tuple[str, Client, str]]:
    """Name, who may open it, and path of every address of the web UI."""
    owner = world.people[OWN, Role.OWNER]
    for pattern in tenant_urls:
        yield str(pattern.name), owner, pages.tenant_path(world, str(pattern.name))
    for name in STAFF_ADDRESSES:
        yield name, world.staff, pages.staff_path(world, name)
    for name in ONESELF:
        yield name, owner, reverse(name)
    for name in sorted(ANYONE):
        for space in ("", "console:"):
            with suppress(NoReverseMatch):
                yield f"{space}{name}", world.nobody, reverse(f"{space}{name}")


@pytest.mark.costly("opens every page")
def test_every_page_is_in_the_list(world: World) -> None:
    known = {path for name, _, path in addresses(world) if name in pages.PAGES}  # login has two names
    missing, unseen = set(), set()
    for name, client, path in addresses(world):
        answer = client.get(path)
        is_page = answer.status_code == 200 and b"<html" in getattr(answer, "content", b"")
        if is_page and path not in known:
            missing.add(name)
        if not is_page and name in OURS and answer.status_code not in _NO_PAGE:
            unseen.add(name)
    assert missing == set(), "add them to tests/ui/pages.py"
    assert unseen == set(UNSEEN), "fill what they are about into tests/ui/filled.py, or say here why not"


def test_every_address_is_tried() -> None:
    own = {str(pattern.name) for pattern in urlpatterns if getattr(pattern, "name", None)}
    assert own <= OURS | ANYONE
    assert set(pages.TENANT_PAGES) | set(pages.STAFF_PAGES) <= OURS
