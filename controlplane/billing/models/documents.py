"""Storage of rendered PDFs, shared by all kinds of documents."""

from __future__ import annotations

from django.db import models


class StoredPdf(models.Model):
    """A document's PDF: where it is stored, or when it is due to be rendered."""

    render_at = models.DateTimeField(null=True, help_text="When rendering is due. Null once it is rendered.")
    attempts = models.PositiveIntegerField(default=0, help_text="Attempts to render it so far.")
    key = models.CharField(max_length=200, blank=True, help_text="Key in the artifact store.")
    size = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    rendered_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True
