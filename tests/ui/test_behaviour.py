"""Pages in everyday use: two tenants at once, going back, double clicks, ended sessions, no network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client
from playwright.sync_api import Page, expect

from controlplane.adapters.models import Adapter
from controlplane.tenants.models import Project, User
from controlplane.tenants.roles import Role
from tests.controlplane.world import OTHER, OWN, PASSWORD, World
from tests.ui import pages
from tests.ui.conftest import Visit
from tests.ui.filled import OWNER, SCRIPT

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]

LISTS = (
    "home",
    "adapters",
    "adapter-register",
    "source-credentials",
    "playground",
    "keys",
    "projects",
    "service-accounts",
    "members",
    "usage",
    "requests",
    "savings",
    "hosting",
    "webhooks",
    "billing",
    "audit",
)
"""Pages that both tenants have: those that are about no single thing."""
HOSTILE = ("home", "keys", "projects", "webhooks", "billing")
HOSTILE_TO_STAFF = (
    "staff-tenants",
    "staff-tenant",
    "staff-prompt-sets",
    "staff-optimization",
    "staff-seller",
)


@pytest.fixture
def owner(world: World) -> Client:
    return world.people[OWN, Role.OWNER]


@pytest.fixture
def newcomer(world: World) -> Iterator[Client]:
    """A separate session of globex's owner, which the test ends."""
    client = Client()
    client.force_login(User.objects.get(email=OWNER))
    yield client
    client.logout()


THEIRS = {OTHER: ("@acme.test", "/t/acme/"), OWN: ("@globex.test", "/t/globex/", "pirate", "adapter-1")}
"""Signs of each tenant that no page of the other may have."""


@pytest.mark.parametrize(("own", "other"), [(OWN, OTHER), (OTHER, OWN)])
def test_two_tenants_never_see_each_other(visit: Visit, world: World, own: str, other: str) -> None:
    signs = THEIRS[other] + ((world.values["public_id"],) if other == OWN else ())
    page = visit(world.people[own, Role.OWNER], f"/t/{own}/")
    for name in LISTS:
        page.goto(pages.tenant_path(world, name, own))
        shown = page.content()
        assert f"/t/{own}/" in shown
        assert [sign for sign in signs if sign in shown] == [], name


def test_another_tenants_adapter_is_not_found(visit: Visit, world: World) -> None:
    page = visit(world.people[OTHER, Role.OWNER], f"/t/{OTHER}/")
    answer = page.goto(pages.tenant_path(world, "adapter"))
    assert answer is not None
    assert answer.status == 404
    signs = (*THEIRS[OWN], world.values["public_id"])
    assert [sign for sign in signs if sign in page.locator("main").inner_text()] == []


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_as_what_they_are(
    visit: Visit, world: World, owner: Client, name: str
) -> None:
    """That no script of theirs runs `visit` sees; that they break no page, `test_pages`."""
    page = visit(owner, pages.tenant_path(world, name))
    assert SCRIPT[:30] in page.locator("body").inner_text()


@pytest.mark.parametrize("name", HOSTILE_TO_STAFF)
def test_staff_see_hostile_names_as_what_they_are(visit: Visit, world: World, name: str) -> None:
    page = visit(world.staff, pages.staff_path(world, name))
    text = page.locator("body").inner_text()
    values = page.eval_on_selector_all("input, textarea", "(all) => all.map((one) => one.value).join()")
    assert SCRIPT[:30] in text + values


def test_going_back_shows_what_was_there(visit: Visit, owner: Client) -> None:
    page = visit(owner, f"/t/{OWN}/adapters/")
    page.get_by_test_id("search").fill("pirate")
    page.get_by_test_id("search").press("Enter")
    page.wait_for_url("**search=pirate**")
    page.locator("main").get_by_role("link", name="pirate", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("pirate")
    page.go_back()
    page.wait_for_url("**search=pirate**")
    expect(page.get_by_test_id("search")).to_have_value("pirate")
    expect(page.locator("main").get_by_role("link", name="adapter-1", exact=True)).to_have_count(0)


def test_two_clicks_make_one_thing_and_going_back_lets_one_go_on(visit: Visit, owner: Client) -> None:
    page = visit(owner, f"/t/{OWN}/projects/")
    fill_project(page, "twice")
    page.locator("main form:has(#project-slug) button").dblclick()
    expect(page.get_by_test_id("projects-table")).to_contain_text("twice")
    assert Project.objects.filter(tenant_id=OWN, slug="twice").count() == 1
    page.goto(f"/t/{OWN}/usage/")
    page.go_back()
    fill_project(page, "afterwards")
    page.locator("main form:has(#project-slug) button").click()
    expect(page.get_by_test_id("projects-table")).to_contain_text("afterwards")


def fill_project(page: Page, slug: str) -> None:
    page.locator("main #project-slug").fill(slug)
    page.locator("main #project-name").fill(slug.title())


def test_an_ended_session_says_so_and_leads_back(visit: Visit, newcomer: Client) -> None:
    page = visit(newcomer, f"/t/{OWN}/projects/?search=x")
    fill_project(page, "late")
    newcomer.session.delete()
    page.locator("main form:has(#project-slug) button").click()
    page.wait_for_url("**/login?next=**")
    expect(page.get_by_test_id("toasts")).to_contain_text("Your session has expired")
    page.get_by_test_id("login-email").fill(OWNER)
    page.get_by_test_id("login-password").fill(PASSWORD)
    page.get_by_test_id("login-submit").click()
    page.wait_for_url(f"**/t/{OWN}/projects/?search=x")
    assert not Project.objects.filter(slug="late").exists()


def test_a_page_that_asks_again_by_itself_leads_to_the_login_when_its_session_ends(
    visit: Visit, newcomer: Client
) -> None:
    path = f"/t/{OWN}/adapters/pirate/aliases/prod/"
    page = visit(newcomer, path)
    expect(page.get_by_test_id("rollout")).to_be_visible()
    newcomer.session.delete()
    # Its next look, within five seconds.
    page.wait_for_url("**/login?next=**")
    expect(page.get_by_test_id("toasts")).to_contain_text("Your session has expired")
    page.get_by_test_id("login-email").fill(OWNER)
    page.get_by_test_id("login-password").fill(PASSWORD)
    page.get_by_test_id("login-submit").click()
    page.wait_for_url(f"**{path}")
    expect(page.get_by_test_id("rollout")).to_be_visible()


def test_whoever_goes_back_after_logging_out_sees_no_page_of_before(visit: Visit, newcomer: Client) -> None:
    page = visit(newcomer, f"/t/{OWN}/members/")
    expect(page.locator("main")).to_contain_text(f"@{OWN}.test")
    page.get_by_test_id("logout").click()
    page.wait_for_url("**/login")
    page.go_back()
    page.wait_for_url("**/login?next=**")
    assert f"@{OWN}.test" not in page.content()


def test_who_comes_for_the_first_time_is_told_of_no_session(visit: Visit) -> None:
    page = visit(None, f"/t/{OWN}/")
    page.wait_for_url("**/login?next=**")
    expect(page.get_by_test_id("toasts")).not_to_contain_text("session")


def test_without_a_network_forms_and_live_parts_say_so(visit: Visit, owner: Client) -> None:
    adapter = Adapter.objects.get(tenant_id=OWN, name="pirate")
    page = visit(owner, f"/t/{OWN}/adapters/{adapter.name}/aliases/prod/")
    expect(page.get_by_test_id("rollout")).to_be_visible()
    page.context.set_offline(True)
    # Its next look, within five seconds.
    expect(page.get_by_test_id("toasts")).to_contain_text("cannot be reached", timeout=60_000)
    page.context.set_offline(False)
    page.goto(f"/t/{OWN}/projects/")
    fill_project(page, "offline")
    page.context.set_offline(True)
    page.locator("main form:has(#project-slug) button").click()
    expect(page.get_by_test_id("toasts")).to_contain_text("cannot be reached")
    expect(page.locator("main #project-slug")).to_have_value("offline")
    page.context.set_offline(False)
    # A browser without any network calls itself offline, and reaches a server on its own machine.
    page.evaluate("Object.defineProperty(navigator, 'onLine', {get: () => false})")
    page.locator("main form:has(#project-slug) button").click()
    expect(page.get_by_test_id("projects-table")).to_contain_text("offline")
    assert Project.objects.filter(tenant_id=OWN, slug="offline").count() == 1
