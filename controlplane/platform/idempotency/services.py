"""Claims on Idempotency-Keys, and the stored responses."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """The right to process the request of a key."""

    digest: str
    key: str
    token: uuid.UUID


@dataclass(frozen=True, slots=True)
class Answer:
    """The stored response to the first request under a key."""

    status: int
    body: Any
    headers: Mapping[str, str]


@contextmanager
def claimed(*, scope: str, key: str, fingerprint: str, lease: timedelta) -> Iterator[Claim | Answer]:
    """Claim a key for the block, or get its stored response. A block that fails frees its claim.

    Arguments and errors are those of `claim_take`.
    """
    claim = claim_take(scope=scope, key=key, fingerprint=fingerprint, lease=lease)
    try:
        yield claim
    except BaseException:
        if isinstance(claim, Claim):
            claim_release(claim=claim)
        raise


def claim_take(*, scope: str, key: str, fingerprint: str, lease: timedelta) -> Claim | Answer:
    """Claim a key, or return its stored response.

    Two requests with one key race for the row's primary key: one inserts it, the other finds it.

    Args:
        scope: the key's owner; another caller's equal key is a different key.
        lease: how long the request may take; afterwards another request can take over the claim.

    Raises:
        ConflictError: the key was used for another request, or its response can no longer be decrypted.
        InProgressError: the key's request is still being processed.
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
        raise InProgressError("the request with this Idempotency-Key has just failed: send it again")
    if row.fingerprint != fingerprint:
        raise ConflictError(
            "this Idempotency-Key was used for another request: use a new key for each request"
        )
    if row.sealed is None:
        raise InProgressError("the request with this Idempotency-Key is in progress: retry in a moment")
    return _opened(claim, bytes(row.sealed))


def answer_keep(*, claim: Claim, answer: Answer) -> bool:
    """Store `answer` for the key; return False if another request has taken over the claim.

    Call it in the transaction of the change, so that both are saved or neither.
    """
    plain = json.dumps([answer.status, answer.body, dict(answer.headers)]).encode()
    sealed = seal(plain, digest=claim.digest, key=claim.key)
    rows = KeptAnswer.objects.filter(pk=claim.digest, claim=claim.token)
    return bool(rows.update(sealed=sealed, expires_at=timezone.now() + KEPT))


def claim_release(*, claim: Claim) -> None:
    """Free the key of a failed request, so that it can be used again."""
    KeptAnswer.objects.filter(pk=claim.digest, claim=claim.token, sealed=None).delete()


def answers_expire() -> int:
    """Delete expired responses; return how many."""
    deleted, _ = KeptAnswer.objects.filter(expires_at__lte=timezone.now()).delete()
    return deleted


def _opened(claim: Claim, sealed: bytes) -> Answer:
    try:
        status, body, headers = json.loads(unseal(sealed, digest=claim.digest, key=claim.key))
    except InvalidTag:
        raise ConflictError(
            "the response for this Idempotency-Key can no longer be read: check if the object was "
            "created, then use another key"
        ) from None
    return Answer(status, body, headers)
