"""Changes of source credentials."""

from __future__ import annotations

import re
from typing import Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.http.outgoing import check_outgoing_url
from controlplane.platform.sealing import seal, unseal
from controlplane.tenants.models import Tenant, User

_PRINTABLE: Final = re.compile(r"[\x21-\x7e]{8,500}")
_REGION: Final = re.compile(r"[a-z0-9-]{0,40}")
_ACCESS_KEY: Final = re.compile(r"[\x21-\x7e]{3,128}")


def credential_create(
    *,
    tenant: Tenant,
    name: str,
    kind: str,
    secret: str,
    endpoint: str = "",
    region: str = "",
    access_key_id: str = "",
    created_by: User | None = None,
) -> SourceCredential:
    """Store a hub token, or an S3 access key with its endpoint.

    Raises:
        InvalidInputError: a part is malformed, missing, or not of this kind.
        ConflictError: the name is taken.
    """
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(
            "a credential's name is 1-63 lower-case letters, digits and inner hyphens", field="name"
        )
    if _PRINTABLE.fullmatch(secret) is None:
        raise InvalidInputError("a secret is 8-500 characters without spaces", field="secret")
    if kind == SourceCredential.Kind.S3:
        endpoint = _check_s3(endpoint, region, access_key_id)
    elif endpoint or region or access_key_id:
        raise InvalidInputError("a hub token takes no endpoint, region or access key", field="kind")
    credential = SourceCredential(
        tenant=tenant,
        name=name,
        kind=kind,
        endpoint=endpoint,
        region=region,
        access_key_id=access_key_id,
        created_by=created_by,
    )
    credential.sealed_secret = seal(secret, place=credential.place)
    try:
        with transaction.atomic():
            credential.save()
            told = snapshot(credential)
            audit_record(tenant=tenant.pk, action="source_credential.create", target=credential, after=told)
    except IntegrityError as error:
        raise ConflictError(
            f"a credential named {name!r} already exists: delete it, or choose another name"
        ) from error
    return credential


@transaction.atomic
def credential_delete(*, credential: SourceCredential) -> None:
    """Removes it; imports that name it and have not begun are refused."""
    before = snapshot(credential)
    audit_record(
        tenant=credential.tenant_id, action="source_credential.delete", target=credential, before=before
    )
    credential.delete()


def credential_secret(*, credential: SourceCredential) -> str:
    """The secret, for a request that is about to be made with it; never for an answer.

    Raises UnsealError.
    """
    secret = unseal(credential.sealed_secret, place=credential.place)
    SourceCredential.objects.filter(pk=credential.pk).update(used_at=timezone.now())
    return secret


def _check_s3(endpoint: str, region: str, access_key_id: str) -> str:
    if _ACCESS_KEY.fullmatch(access_key_id) is None:
        raise InvalidInputError("an S3 credential needs an access key ID", field="access_key_id")
    if _REGION.fullmatch(region) is None:
        raise InvalidInputError("write a region like eu-central-1", field="region")
    if not endpoint:
        return ""
    checked = check_outgoing_url(endpoint, field="endpoint").rstrip("/")
    if checked.count("/") > 2 or "?" in checked:
        raise InvalidInputError("write an endpoint as https://host or https://host:port", field="endpoint")
    return checked
