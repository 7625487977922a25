"""Responses stored by Idempotency-Key."""

from __future__ import annotations

from django.db import models


class KeptAnswer(models.Model):
    """A request under an Idempotency-Key: claimed by who works on it, then with its answer.

    The row names neither the key nor the caller, and the answer, which may hold an API key's text, opens
    only with both the key and GRAFTWORK_SECRET_KEY.
    """

    digest = models.CharField(primary_key=True, max_length=64, help_text="HMAC of caller and key.")
    fingerprint = models.CharField(max_length=64, help_text="HMAC of the request.")
    claim = models.UUIDField(help_text="Token of the claim; a later claim replaces it.")
    claimed_until = models.DateTimeField()
    sealed = models.BinaryField(
        null=True, help_text="Encrypted response; null while the request is in progress."
    )
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.digest[:12]
