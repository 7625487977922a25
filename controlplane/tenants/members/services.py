"""Changes and removes members; creates, sends, withdraws and accepts invitations."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import Model, Q
from django.utils import timezone

from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.http.throttling import take, take_daily
from controlplane.platform.queue import enqueue
from controlplane.tenants.access import Access, check_grant
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import member_get
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_keys_revoke, user_end_sessions

LIFETIME: Final = dt.timedelta(days=7)
SEND_INVITATION: Final = "members.send_invitation"
RETRY_AFTER: Final = dt.timedelta(minutes=2)
"""Time after which a sending attempt counts as failed; longer than the mail server's time limit."""
PER_TENANT: Final = 20
"""Most links a minute for one tenant's invitations."""
PER_EMAIL: Final = 2
"""Most links a minute to one e-mail address, from all tenants."""
PER_EMAIL_DAILY: Final = 20


@transaction.atomic
def member_set_role(*, tenant: Tenant, user_id: int, role: str, by: Access | None = None) -> Membership:
    """Change a member's role, effective with their next request.

    Raises:
        InvalidInputError: no such role.
        NotFoundError: the tenant has no such member.
        ForbiddenError: `by` lacks a permission of the new role, or of the one before.
        ConflictError: the tenant would have no owner.
    """
    wanted = _role(role)
    member = _locked_member(tenant, user_id, by)
    check_grant(by, wanted)
    if wanted != Role.OWNER:
        _keep_an_owner(member)
    before = {"role": member.role}
    member.role = wanted
    member.save(update_fields=["role"])
    _record(tenant, "member.set_role", member.user, before=before, after={"role": member.role})
    return member


@transaction.atomic
def member_remove(*, tenant: Tenant, user_id: int, by: Access | None = None) -> None:
    """Remove a member from the tenant; end all their sessions and revoke their playground keys.

    Keys that they created for applications stay, since those are the tenant's.

    Raises:
        NotFoundError: the tenant has no such member.
        ForbiddenError: `by` lacks a permission of the member's.
        ConflictError: it is the tenant's only owner.
    """
    member = _locked_member(tenant, user_id, by)
    _keep_an_owner(member)
    own = ApiKey.objects.filter(tenant=tenant, created_by=member.user, expires_at__gt=timezone.now())
    api_keys_revoke(keys=own.filter(name=ApiKey.PLAYGROUND))
    member.delete()
    user_end_sessions(user=member.user)
    _record(tenant, "member.remove", member.user, before={"role": member.role})


@transaction.atomic
def invitation_create(
    *, tenant: Tenant, email: str, role: str, by: Access | None = None, invited_by: User | None = None
) -> Invitation:
    """Invite an e-mail address and send it a link.

    Raises:
        InvalidInputError: the e-mail address is malformed, or there is no such role.
        ForbiddenError: `by` lacks a permission of the role.
        ConflictError: the address is a member's or invited already, or a rate limit is reached.
    """
    email, wanted = email.strip().lower(), _role(role)
    check_grant(by, wanted)
    try:
        validate_email(email)
    except ValidationError as error:
        raise InvalidInputError("enter an e-mail address such as name@example.com", field="email") from error
    if Membership.objects.filter(tenant=tenant, user__email=email).exists():
        raise ConflictError(f"{email} is already a member")
    now = timezone.now()
    Invitation.objects.filter(
        tenant=tenant, email=email, accepted_at=None, revoked_at=None, expires_at__lte=now
    ).update(revoked_at=now)
    try:
        with transaction.atomic():
            invitation = Invitation.objects.create(
                tenant=tenant,
                email=email,
                role=wanted,
                invited_by=invited_by,
                nonce=secrets.token_hex(16),
                expires_at=now + LIFETIME,
            )
    except IntegrityError as error:
        raise ConflictError(f"{email} is already invited: resend that invitation") from error
    _check_rate(tenant, email)
    enqueue(SEND_INVITATION, invitation_id=invitation.pk)
    _record(tenant, "invitation.create", invitation, after={"email": email, "role": wanted})
    return invitation


@transaction.atomic
def invitation_resend(*, invitation: Invitation, by: Access | None = None) -> Invitation:
    """Send a new link, valid for the full time again; the previous link becomes void.

    Raises:
        ForbiddenError: `by` lacks a permission of the role.
        ConflictError: it was accepted or withdrawn meanwhile, or a rate limit is reached.
    """
    check_grant(by, Role(invitation.role))
    changed = Invitation.objects.filter(pk=invitation.pk, accepted_at=None, revoked_at=None).update(
        nonce=secrets.token_hex(16), expires_at=timezone.now() + LIFETIME, attempted_at=None, sent_at=None
    )
    if not changed:
        raise ConflictError("the invitation was accepted or revoked: create a new one")
    _check_rate(invitation.tenant, invitation.email)
    enqueue(SEND_INVITATION, invitation_id=invitation.pk)
    before = {"expires_at": invitation.expires_at}
    invitation.refresh_from_db()
    after = {"expires_at": invitation.expires_at}
    _record(invitation.tenant, "invitation.resend", invitation, before=before, after=after)
    return invitation


@transaction.atomic
def invitation_revoke(*, invitation: Invitation, by: Access | None = None) -> None:
    """Withdraws an invitation.

    Raises:
        ForbiddenError: `by` lacks a permission of the role.
        ConflictError: it was accepted, or withdrawn, meanwhile.
    """
    check_grant(by, Role(invitation.role))
    open_ = Invitation.objects.filter(pk=invitation.pk, accepted_at=None, revoked_at=None)
    if not open_.update(revoked_at=timezone.now()):
        raise ConflictError("the invitation was accepted or revoked: check the members")
    _record(invitation.tenant, "invitation.revoke", invitation, before={"email": invitation.email})


@transaction.atomic
def invitation_accept(*, invitation: Invitation, user: User) -> Membership:
    """Accept an invitation: make `user`, whose address was invited, a member.

    Raises:
        ConflictError: the invitation is another address's, or `user` is a member already.
        NotFoundError: it was used, withdrawn, sent anew or has expired.
    """
    if user.email.lower() != invitation.email:
        raise ConflictError(f"this invitation is for {invitation.email}: log in with that address")
    now = timezone.now()
    # The conditional UPDATE is the claim: the second of two concurrent clicks finds the link used.
    claimed = Invitation.objects.filter(
        pk=invitation.pk, nonce=invitation.nonce, accepted_at=None, revoked_at=None, expires_at__gt=now
    ).update(accepted_at=now)
    if not claimed:
        raise NotFoundError("this invitation is no longer valid: ask for a new one")
    member, is_new = Membership.objects.get_or_create(
        user=user, tenant=invitation.tenant, defaults={"role": invitation.role}
    )
    if not is_new:
        raise ConflictError(f"{user.email} is already a member")
    _record(
        invitation.tenant, "invitation.accept", invitation, after={"email": user.email, "role": member.role}
    )
    return member


def invitation_claim(*, invitation_id: int) -> Invitation | None:
    """Claim the sending of an invitation's link; None if it is sent, void, or being sent."""
    now = timezone.now()
    free = Q(attempted_at=None) | Q(attempted_at__lt=now - RETRY_AFTER)
    unsent = Invitation.objects.filter(
        free, pk=invitation_id, sent_at=None, accepted_at=None, revoked_at=None, expires_at__gt=now
    )
    if not unsent.update(attempted_at=now):
        return None
    return Invitation.objects.select_related("tenant", "invited_by").get(pk=invitation_id)


def invitation_sent(*, invitation: Invitation) -> None:
    """Record that the link was sent, unless a newer one has replaced it."""
    Invitation.objects.filter(pk=invitation.pk, nonce=invitation.nonce).update(sent_at=timezone.now())


def _check_rate(tenant: Tenant, email: str) -> None:
    """Count a link that is about to be sent. Raises ConflictError if a limit is reached."""
    to, wait = f"invitations:mail:{email}", "try again in a minute"
    if take(f"invitations:tenant:{tenant.pk}", per_minute=PER_TENANT):
        raise ConflictError(f"{PER_TENANT} invitations can be sent per minute: {wait}")
    if take(to, per_minute=PER_EMAIL):
        raise ConflictError(f"{email} can be sent {PER_EMAIL} invitations per minute: {wait}")
    if take_daily(to, per_day=PER_EMAIL_DAILY):
        raise ConflictError(f"{email} was sent {PER_EMAIL_DAILY} invitations today: try again tomorrow")


def _record(tenant: Tenant, action: str, target: Model, **sides: Any) -> None:
    audit_record(tenant=tenant.pk, action=action, target=target, **sides)


def _role(role: str) -> Role:
    if role not in Role.values:
        raise InvalidInputError(f"role must be one of {', '.join(Role.values)}", field="role")
    return Role(role)


def _locked_member(tenant: Tenant, user_id: int, by: Access | None) -> Membership:
    """Return the member with the tenant's row locked, so that concurrent changes never remove all owners."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    member = member_get(tenant=tenant, user_id=user_id)
    check_grant(by, Role(member.role))
    return member


def _keep_an_owner(member: Membership) -> None:
    owners = Membership.objects.filter(tenant=member.tenant_id, role=Role.OWNER)
    if member.role == Role.OWNER and not owners.exclude(pk=member.pk).exists():
        raise ConflictError("a tenant needs an owner: make another member owner first")
