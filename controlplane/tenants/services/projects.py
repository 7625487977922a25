"""Changes of projects and service accounts."""

from __future__ import annotations

from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.tenants.access import Access, check_grant
from controlplane.tenants.models import Project, ServiceAccount, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services.keys import api_keys_revoke

_SLUG: Final = "1-63 lower-case letters, digits and inner hyphens"


def project_create(*, tenant: Tenant, slug: str, name: str) -> Project:
    """Makes a project; its slug stands in usage from then on.

    Raises:
        InvalidInputError: `slug` is no slug.
        ConflictError: the tenant has had such a project.
    """
    if SLUG_PATTERN.fullmatch(slug) is None:
        raise InvalidInputError(f"a project's slug must be {_SLUG}", field="slug")
    try:
        with transaction.atomic():
            project = Project.objects.create(tenant=tenant, slug=slug, name=_name(name) or slug)
            _record(project, "project.create")
            return project
    except IntegrityError as error:
        raise ConflictError(f"project {slug!r} already exists: choose another slug") from error


@transaction.atomic
def project_rename(*, project: Project, name: str) -> Project:
    """Gives the project another name. Raises InvalidInputError for none."""
    before = locked_snapshot(project)
    project.name = _name(name)
    if not project.name:
        raise InvalidInputError("name is required", field="name")
    project.save(update_fields=["name"])
    _record(project, "project.rename", before)
    return project


@transaction.atomic
def project_archive(*, project: Project) -> Project:
    """Closes the project to new keys; its usage stays. A second call changes nothing.

    Raises:
        ConflictError: it is the tenant's default, or has live keys or service accounts.
    """
    # A key being made holds this lock too: it is seen here, or finds the project archived.
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.slug == Project.DEFAULT:
        raise ConflictError("the default project cannot be archived: it owns keys without another project")
    if project.service_accounts.filter(disabled_at=None).exists():
        raise ConflictError("disable the project's service accounts first")
    if any(key.is_live for key in project.api_keys.filter(revoked_at=None)):
        raise ConflictError("revoke the project's keys first")
    if project.archived_at is None:
        before = snapshot(project)
        project.archived_at = timezone.now()
        project.save(update_fields=["archived_at"])
        _record(project, "project.archive", before)
    return project


def service_account_create(
    *, project: Project, name: str, role: str, by: Access | None = None, created_by: User | None = None
) -> ServiceAccount:
    """Makes a service account, without a key yet.

    Raises:
        InvalidInputError: `name` is no slug, or the role none that an account may have.
        ConflictError: the tenant has had one of that name, or the project is archived.
        ForbiddenError: `by` lacks a permission of the role's.
    """
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(f"a service account's name must be {_SLUG}", field="name")
    _check_role(by, role)
    try:
        with transaction.atomic():
            if Project.objects.select_for_update().get(pk=project.pk).archived_at is not None:
                raise ConflictError(f"project {project.slug} is archived: choose another")
            account = ServiceAccount.objects.create(
                tenant=project.tenant, project=project, name=name, role=role, created_by=created_by
            )
            _record(account, "service_account.create")
            return account
    except IntegrityError as error:
        raise ConflictError(f"service account {name!r} already exists: choose another name") from error


@transaction.atomic
def service_account_set_role(
    *, account: ServiceAccount, role: str, by: Access | None = None
) -> ServiceAccount:
    """Changes what the account's keys may do, with their next call.

    Raises:
        InvalidInputError: the role is none that an account may have.
        ConflictError: the account is disabled.
        ForbiddenError: `by` lacks a permission of the role's, or of the one before.
    """
    _check_role(by, role)
    check_grant(by, Role(account.role))
    before = locked_snapshot(account)
    if not ServiceAccount.objects.filter(pk=account.pk, disabled_at=None).update(role=role):
        raise ConflictError(f"service account {account.name} is disabled: create another one")
    account.refresh_from_db()
    _record(account, "service_account.set_role", before)
    return account


@transaction.atomic
def service_account_disable(*, account: ServiceAccount, by: Access | None = None) -> ServiceAccount:
    """Ends the account and revokes its keys, everywhere within a second; a second call changes nothing.

    Raises:
        ForbiddenError: `by` lacks a permission of the account's role.
    """
    check_grant(by, Role(account.role))
    # First the row, whose lock a key being made waits for.
    before = locked_snapshot(account)
    ServiceAccount.objects.filter(pk=account.pk, disabled_at=None).update(disabled_at=timezone.now())
    api_keys_revoke(keys=account.api_keys.all())
    account.refresh_from_db()
    _record(account, "service_account.disable", before)
    return account


def _record(row: Project | ServiceAccount, action: str, before: dict[str, Any] | None = None) -> None:
    audit_record(tenant=row.tenant_id, action=action, target=row, before=before, after=snapshot(row))


def _check_role(by: Access | None, role: str) -> None:
    wanted = [choice for choice in Role if choice != Role.OWNER]
    if role not in wanted:
        raise InvalidInputError(f"role must be one of {', '.join(wanted)}", field="role")
    check_grant(by, Role(role))


def _name(text: str) -> str:
    if len(text := text.strip()) > 200:
        raise InvalidInputError("name must have at most 200 characters", field="name")
    return text
