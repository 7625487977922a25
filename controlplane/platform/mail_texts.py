"""What an e-mail says, out of its two templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils import translation


def mail_texts(name: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """Subject and body: `<name>_subject.txt` and `<name>.txt`, in the installation's language.

    Nobody's browser tells here which one its reader would rather have.
    """
    with translation.override(settings.LANGUAGE_CODE):
        # In one line: a line break in a tenant's name would begin another header.
        subject = " ".join(render_to_string(f"{name}_subject.txt", dict(context)).split())
        return subject, render_to_string(f"{name}.txt", dict(context))
