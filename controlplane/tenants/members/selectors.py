"""Reads of members and invitations."""

from __future__ import annotations

from django.core import signing
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.errors import NotFoundError
from controlplane.platform.row_lookup import row_get
from controlplane.platform.row_security.scope import scope_set
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.models import Membership, Tenant

SALT = "controlplane.tenants.members.invitation"
_VOID = "this invitation is invalid: it was used, revoked, resent or has expired. Ask for a new one"


def member_list(*, tenant: Tenant) -> QuerySet[Membership]:
    """List the tenant's members by user id."""
    return Membership.objects.filter(tenant=tenant).select_related("user", "tenant").order_by("user_id")


def member_by_email(*, tenant: Tenant, part: str = "") -> QuerySet[Membership]:
    """List the tenant's members whose e-mail address contains `part`, by address."""
    members = member_list(tenant=tenant).annotate(email=F("user__email")).order_by("email")
    return members.filter(user__email__icontains=part) if part else members


def member_get(*, tenant: Tenant, user_id: int) -> Membership:
    """Return the member. Raises NotFoundError, also for another tenant's."""
    rows = member_list(tenant=tenant).filter(user_id=user_id)
    return row_get(rows, f"tenant {tenant.pk} has no member {user_id}")


def invitation_list(*, tenant: Tenant) -> QuerySet[Invitation]:
    """List the tenant's pending invitations, newest first; expired ones too."""
    return Invitation.objects.filter(tenant=tenant, accepted_at=None, revoked_at=None).select_related(
        "invited_by"
    )


def invitation_get(*, tenant: Tenant, invitation_id: int) -> Invitation:
    """Return the pending invitation. Raises NotFoundError, also for another tenant's."""
    rows = invitation_list(tenant=tenant).filter(pk=invitation_id)
    return row_get(rows, f"tenant {tenant.pk} has no open invitation {invitation_id}")


def invitation_token(invitation: Invitation) -> str:
    """Return the signed token for the link in the e-mail."""
    return signing.dumps([invitation.tenant_id, invitation.pk, invitation.nonce], salt=SALT)


def invitation_by_token(*, token: str) -> Invitation:
    """Return the open invitation of a signed token.

    Raises:
        NotFoundError: the token is forged, or its invitation is no longer open.
    """
    try:
        tenant, pk, nonce = signing.loads(token, salt=SALT)
    except (signing.BadSignature, ValueError):
        raise NotFoundError(_VOID) from None
    scope_set(tenant=tenant)
    rows = Invitation.objects.select_related("tenant", "invited_by")
    invitation = rows.filter(tenant_id=tenant, pk=pk, nonce=nonce).first()
    if invitation is None or not invitation.is_open:
        raise NotFoundError(_VOID)
    return invitation


def invitations_unsent() -> list[int]:
    """List the ids of open invitations whose link has not been sent, oldest first."""
    unsent = Invitation.objects.filter(
        sent_at=None, accepted_at=None, revoked_at=None, expires_at__gt=timezone.now()
    )
    return list(unsent.order_by("pk").values_list("pk", flat=True))
