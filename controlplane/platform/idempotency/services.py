"""Claims on Idempotency-Keys, and the answers kept under them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.errors import ConflictError, InProgressError
from controlplane.platform.idempotency.models import KeptAnswer
from controlplane.platform.idempotency.sealing import key_digest, seal, unseal

KEPT: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer a key's request."""

    digest: str
    key: str
    token: uuid.UUID


@dataclass(frozen=True, slots=True)
class Answer:
    """What the first request under the key was answered."""

    status: int
    body: Any
    headers: Mapping[str, str]


def claim_take(*, scope: str, key: str, fingerprint: str, lease: timedelta) -> Claim | Answer:
    """The right to answer, or the answer that there is.

    Two requests with one key race for the row's primary key: one inserts it, the other finds it.

    Args:
        scope: whose key it is; the same key of another caller is another key.
        lease: how long the work may take; after that another request takes the claim over.

    Raises:
        ConflictError: the key stood for another request, or its answer can no longer be read.
        InProgressError: its request is being worked on.
    """
    claim = Claim(key_digest(scope=scope, key=key), key, uuid.uuid4())
    now = timezone.now()
    fresh = {
        "fingerprint": fingerprint,
        "claim": claim.token,
        "claimed_until": now + lease,
        "sealed": None,
        "expires_at": now + KEPT,
    }
    try:
        with transaction.atomic():
            KeptAnswer.objects.create(digest=claim.digest, **fresh)
        return claim
    except IntegrityError:
        pass
    abandoned = Q(sealed=None, fingerprint=fingerprint, claimed_until__lte=now)
    rows = KeptAnswer.objects.filter(pk=claim.digest)
    if rows.filter(Q(expires_at__lte=now) | abandoned).update(**fresh):
        return claim
    row = rows.first()
    if row is None:
        raise InProgressError("the request under this Idempotency-Key has just failed: send it again")
    if row.fingerprint != fingerprint:
        raise ConflictError("this Idempotency-Key stood for another request: send each request under its own")
    if row.sealed is None:
        raise InProgressError("the request under this Idempotency-Key is under way: ask again in a moment")
    return _opened(claim, bytes(row.sealed))


def answer_keep(*, claim: Claim, answer: Answer) -> bool:
    """Keeps `answer` for the key; False when the claim has been taken over meanwhile.

    Called in the transaction of the change itself, so that there is either both or neither.
    """
    plain = json.dumps([answer.status, answer.body, dict(answer.headers)]).encode()
    sealed = seal(plain, digest=claim.digest, key=claim.key)
    rows = KeptAnswer.objects.filter(pk=claim.digest, claim=claim.token)
    return bool(rows.update(sealed=sealed, expires_at=timezone.now() + KEPT))


def claim_release(*, claim: Claim) -> None:
    """Frees the key of a request that failed: the next one under it is a new one."""
    KeptAnswer.objects.filter(pk=claim.digest, claim=claim.token, sealed=None).delete()


def answers_expire() -> int:
    """Forgets answers whose time is over; how many."""
    deleted, _ = KeptAnswer.objects.filter(expires_at__lte=timezone.now()).delete()
    return deleted


def _opened(claim: Claim, sealed: bytes) -> Answer:
    try:
        status, body, headers = json.loads(unseal(sealed, digest=claim.digest, key=claim.key))
    except InvalidTag:
        raise ConflictError(
            "the answer under this Idempotency-Key can no longer be read: look whether what it made is"
            " there, then use another key"
        ) from None
    return Answer(status, body, headers)
