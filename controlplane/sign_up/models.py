"""Sign-ups that have been requested and not completed yet."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class SignUp(models.Model):
    """A sign-up of an e-mail address. Its link is signed over `nonce`; using it removes the row."""

    email = models.EmailField(unique=True)
    nonce = models.CharField(max_length=32, help_text="Requesting a new link invalidates the previous one.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    attempted_at = models.DateTimeField(null=True, blank=True, help_text="Last attempt to send it.")
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-pk")

    def __str__(self) -> str:
        return self.email

    @property
    def is_open(self) -> bool:
        """True while the link is valid."""
        return self.expires_at > timezone.now()
