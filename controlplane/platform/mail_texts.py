"""Renders an e-mail's subject and body from its two templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils import translation


def mail_texts(name: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """Render `<name>_subject.txt` and `<name>.txt` in the installation's language.

    The recipient's preferred language is not known here.
    """
    with translation.override(settings.LANGUAGE_CODE):
        # Joined into one line: a line break in a tenant's name would begin another header.
        subject = " ".join(render_to_string(f"{name}_subject.txt", dict(context)).split())
        return subject, render_to_string(f"{name}.txt", dict(context))
