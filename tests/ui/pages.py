"""Every page of the web UI, and how to open it: one line for each, with the query that fills it most.

Tenants' pages are opened as well by a tenant that has nothing, by who may not, and with what cannot be.

What a page's address names is taken from the isolation tests' world. `test_every_page_is_in_the_list` opens
each address that there is and names the pages that are missing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.test import Client
from django.urls import reverse

from controlplane.sign_up.models import SignUp
from controlplane.sign_up.selectors import sign_up_token
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.roles import Role
from tests.controlplane.staff_pages import STAFF_LISTS, staff_thing
from tests.controlplane.test_isolation import page_path
from tests.controlplane.world import OTHER, OWN, World
from tests.ui.filled import EMPTY

TENANT_PAGES = {
    "home": "",
    "adapters": "",
    "adapter-register": "",
    "adapter": "",
    "alias": "",
    "version": "",
    "source-credentials": "",
    "playground": "",
    "keys": "",
    "key": "",
    "key-limits": "",
    "projects": "",
    "service-accounts": "",
    "members": "",
    "usage": "",
    "monitoring": "",
    "monitoring-adapter": "?range=month",
    "alarms": "?adapter=pirate",
    "alarm": "",
    "requests": "",
    "request": "",
    "prompt-log": "",
    "savings": "?region=eu-central-1",
    "hosting": "",
    "webhooks": "",
    "webhook": "",
    "audit": "",
    "billing": "",
    "journal": "",
    "invoice": "",
    "credit-note": "",
}
"""URL name of a page below /t/<tenant>/ -> its query, as `?days=30`."""
STAFF_PAGES = {
    "staff-home": "",
    "staff-tenants": "",
    "staff-tenant": "",
    "staff-books": "",
    "staff-usage-sources": "",
    "staff-base-models": "",
    "staff-base-model": "",
    "staff-health": "",
    "staff-fleet": "",
    "staff-fleet-copy": "",
    "staff-residency": "?all=1",
    "staff-fleet-adapter": "",
    "staff-queues": "",
    "staff-deployments": "",
    "staff-deployment-new": "",
    "staff-deployment": "",
    "staff-deployment-adapters": "",
    "staff-deployment-consolidation": "",
    "staff-deployment-rollouts": "",
    "staff-targets": "",
    "staff-price-books": "",
    "staff-price-book": "",
    "staff-invoices": "",
    "staff-invoice": "",
    "staff-credit-note": "",
    "staff-seller": "",
    "staff-hosting": "",
    "staff-fleet-bill": "",
    "staff-instance-prices": "",
    "staff-savings": "",
    "staff-blended-price": "",
    "staff-audit": "",
    "staff-monitoring": "?range=week",
    "staff-alarms": "",
    "staff-alarm": "",
    "staff-quarantines": "",
    "staff-optimizations": "",
    "staff-optimization-new": "",
    "staff-optimization": "",
    "staff-prompt-sets": "",
    "staff-assessment-new": "",
    "staff-assessment": "",
    "staff-comparison-new": "",
    "staff-comparison": "",
}
"""URL name of a page for staff -> its query."""
ACCOUNT_PAGES = {
    "account_logout": "",
    "account_change_password": "",
    "account_reauthenticate": "",
    "mfa_index": "",
    "socialaccount_connections": "",
}
"""URL name of a page about oneself -> its query."""
OPEN_PAGES = {
    "console:login": "",
    "console:sign-up": "",
    "console:sign-up-confirm": "",
    "console:invitation": "",
    "account_login": "?next=/t/globex/keys/",
    "account_inactive": "",
    "account_email_verification_sent": "",
    "account_reset_password": "",
    "account_reset_password_done": "",
    "account_reset_password_from_key_done": "",
    "socialaccount_login_cancelled": "",
    "socialaccount_login_error": "",
}
"""URL name of a page for who is not logged in -> its query."""


EMPTY_PAGES = {
    f"empty {name}": name
    for name in (
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
        "audit",
        "billing",
        "journal",
    )
}
"""A tenant's page as one sees it that has nothing yet -> its URL name."""
REFUSED_PAGES: dict[str, tuple[str, str, Role | None, int]] = {
    "no permission": ("billing", OWN, Role.VIEWER, 403),
    "no permission, from a form's page": ("adapter-register", OWN, Role.BILLING, 403),
    "of another tenant": ("adapters", OWN, None, 404),
    "of nothing there is": ("adapter", EMPTY, Role.OWNER, 404),
}
"""A page that is refused -> its URL name, whose it is, who of them asks (None: of another), the status."""
WRONG_PAGES = {
    "usage of no day": ("usage", "?start=yesterday&end=never", 422),
    "hosting of no day": ("hosting", "?start=yesterday&end=never", 422),
    "requests of no day": ("requests", "?start=yesterday&end=never", 422),
    "audit of no day": ("audit", "?since=yesterday", 422),
    "savings of no day": ("savings", "?start=yesterday&end=never", 422),
}
"""A page that is asked what cannot be -> its URL name, its query, the status."""


@dataclass(frozen=True)
class Opening:
    """A page to open: its user (None: logged out), its address, the expected status."""

    client: Client | None
    path: str
    status: int = 200


def tenant_path(world: World, name: str, tenant: str = OWN) -> str:
    """Address of a page below /t/<tenant>/, without a query."""
    return page_path(world, name, tenant)


def staff_path(world: World, name: str) -> str:
    """Address of a staff page, without a query."""
    arguments = () if name in STAFF_LISTS else (staff_thing(world, name),)
    return reverse(f"console:{name}", args=arguments)


def opening(world: World, name: str) -> Opening:
    """Return how to open the page of that name."""
    owner = world.people[OWN, Role.OWNER]
    if name in EMPTY_PAGES:
        return Opening(world.people[EMPTY, Role.OWNER], tenant_path(world, EMPTY_PAGES[name], EMPTY))
    if name in REFUSED_PAGES:
        page, tenant, role, status = REFUSED_PAGES[name]
        who = world.people[tenant, role] if role else world.people[OTHER, Role.OWNER]
        return Opening(who, tenant_path(world, page, tenant), status)
    if name in WRONG_PAGES:
        page, query, status = WRONG_PAGES[name]
        return Opening(owner, tenant_path(world, page) + query, status)
    if name in TENANT_PAGES:
        return Opening(owner, tenant_path(world, name) + TENANT_PAGES[name])
    if name in STAFF_PAGES:
        return Opening(world.staff, staff_path(world, name) + STAFF_PAGES[name])
    if name in ACCOUNT_PAGES:
        return Opening(owner, reverse(name) + ACCOUNT_PAGES[name])
    return Opening(None, reverse(name, args=_tokens(name)) + OPEN_PAGES[name])


def _tokens(name: str) -> tuple[str, ...]:
    """Return the token in the URL of a public page, if it has one."""
    if name == "console:sign-up-confirm":
        return (sign_up_token(SignUp.objects.get()),)
    if name == "console:invitation":
        return (invitation_token(Invitation.objects.get()),)
    return ()


PAGES = (*TENANT_PAGES, *EMPTY_PAGES, *REFUSED_PAGES, *WRONG_PAGES, *STAFF_PAGES, *ACCOUNT_PAGES, *OPEN_PAGES)
