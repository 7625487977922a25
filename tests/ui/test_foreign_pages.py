"""Pages whose templates are other packages': the staff admin and the REST API's document, light and dark."""

from __future__ import annotations

import pytest

from tests.controlplane.world import OWN, World
from tests.ui.checks import DESK, STILL, axe
from tests.ui.conftest import Visit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
THEIRS: dict[str, frozenset[str]] = {
    "/admin/": frozenset(),
    "/admin/tenants/tenant/": frozenset(),
    f"/admin/tenants/tenant/{OWN}/change/": frozenset(),
    "/admin/audit/auditrecord/": frozenset(),
    "/api/docs/": frozenset({"heading-order", "nested-interactive", "region"}),
}
"""Page -> axe's rules that the package's own markup breaks; docs/limits.md says so.

The REST API's document alone takes 8 s of processor time to draw: it is another package's program."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", [path if path != "/api/docs/" else pytest.param(path, marks=pytest.mark.slow) for path in THEIRS]
)
def test_only_what_is_known_of_the_packages_fails(path: str, scheme: str, world: World, visit: Visit) -> None:
    page = visit(world.staff, path, viewport=DESK, color_scheme=scheme, reduced_motion="reduce")
    page.add_init_script(STILL)
    page.reload(wait_until="networkidle")
    broken = {told.split(":")[0].removeprefix("axe "): told for told in axe(page)}
    assert broken.keys() == THEIRS[path], broken
