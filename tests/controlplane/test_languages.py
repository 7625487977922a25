"""Pages and e-mails in a language that has a catalogue; English where there is none."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from django.apps import apps
from django.test import Client
from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import template as extraction
from pytest_django import Settings

from contracts.environment import SettingsError
from controlplane.platform.environment import Environment
from controlplane.platform.languages import languages
from controlplane.platform.mail_texts import mail_texts
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.webhooks.models import WebhookEndpoint
from tests.conftest import ROOT

NAMES = {
    "adapters.AdapterVersion.status": "components/status.html says each in words of its own",
    "credentials.SourceCredential.kind": "names of products",
    "deployments.Copy.kind": "shown as REST has it",
    "deployments.Target.kind": "shown as REST has it",
    "deployments.Placement.status": "shown as REST has it",
    "billing.HostingPrice.kind": "shown as REST has it",
    "billing.Invoice.status": "shown as REST has it",
    "billing.JournalEntry.kind": "shown as REST has it",
    "metering.LatencyHour.metric": "on no page: the label that pages show is that of an alarm's metric",
    "optimization.Artifact.state": "on no page: the label that pages show is that of an alarm's state",
    "webhooks.WebhookDelivery.status": "webhooks/state.html says each in words of its own",
}
"""Fields named as ones whose labels pages show -> why theirs need no translation."""
TEXTS = {
    "": "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n",
    "Log in": "Einloggen",  # Django's own German is another
    "Owner": "Inhaberin",
    "A webhook of %(tenant)s on Graftwork is disabled": "Ein Webhook von %(tenant)s ist aus",
    "Reason: %(reason)s.": "Warum: %(reason)s.",
    "You receive this e-mail because you can manage webhooks of %(tenant)s.": "An alle von %(tenant)s.",
}


def compiled(texts: Mapping[str, str]) -> bytes:
    """A catalogue as `compilemessages` makes them: texts in order, by length and offset (gettext's .mo)."""
    rows = sorted((key.encode(), value.encode()) for key, value in texts.items())
    head = struct.pack("<IIIIIII", 0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0)
    index, data = b"", b""
    for text in [key for key, _ in rows] + [value for _, value in rows]:
        index += struct.pack("<II", len(text), len(head) + 16 * len(rows) + len(data))
        data += text + b"\0"
    return head + index + data


@pytest.fixture
def german(tmp_path: Path, settings: Settings) -> Iterator[None]:
    """Some texts in German, as an operator adds a language."""
    folder = tmp_path / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "django.mo").write_bytes(compiled(TEXTS))
    settings.LOCALE_PATHS = [tmp_path]
    settings.LANGUAGES = list(languages(tmp_path).items())
    yield
    translation.activate("en")


def test_a_language_is_there_once_it_has_a_catalogue(tmp_path: Path) -> None:
    assert languages(tmp_path) == {"en": "English"}
    for name in ("pt_BR", "de"):
        (tmp_path / name / "LC_MESSAGES").mkdir(parents=True)
        (tmp_path / name / "LC_MESSAGES" / "django.mo").touch()
    (tmp_path / "fr" / "LC_MESSAGES").mkdir(parents=True)
    assert languages(tmp_path) == {"en": "English", "de": "Deutsch", "pt-br": "Português Brasileiro"}


def test_an_installation_without_the_catalogue_says_so() -> None:
    with pytest.raises(SettingsError, match=r"GRAFTWORK_LANGUAGE is 'xx'.* available are en"):
        Environment.from_env({"GRAFTWORK_SECRET_KEY": "x", "GRAFTWORK_LANGUAGE": "xx"})


@pytest.mark.django_db
def test_a_page_is_in_the_browsers_language(german: None) -> None:
    for asked, language, title in (("de-AT,de;q=0.9", "de", "Einloggen"), ("fr", "en", "Log in")):
        answer = Client(headers={"Accept-Language": asked}).get("/login")
        text = answer.content.decode()
        assert f'<html lang="{language}"' in text
        assert re.search(rf"<title>\s*{title}", text)
        assert answer["Content-Language"] == language
        assert "Accept-Language" in answer["Vary"]


@pytest.mark.django_db
def test_without_a_catalogue_of_its_own_no_page_is_half_translated() -> None:
    text = Client(headers={"Accept-Language": "de"}).get("/login").content.decode()
    assert '<html lang="en"' in text
    assert "Anmelden" not in text  # Django's own


def test_a_mail_is_in_the_installations_language(german: None, settings: Settings) -> None:
    tenant = Tenant(pk="acme", name="Acme\r\nBcc: all@acme.test")
    endpoint = WebhookEndpoint(pk="we_1", tenant=tenant, disabled_reason="410 Gone")
    context = {"endpoint": endpoint, "host": "https://hooks.test", "page": "https://graft.test/we_1"}
    subject, body = mail_texts("webhooks/disabled", context)
    assert subject == "A webhook of Acme Bcc: all@acme.test on Graftwork is disabled"
    assert "Reason: 410 Gone." in body
    settings.LANGUAGE_CODE = "de"
    translation.activate("en")  # whoever asked for it
    subject, body = mail_texts("webhooks/disabled", context)
    assert subject == "Ein Webhook von Acme Bcc: all@acme.test ist aus"
    assert "Warum: 410 Gone." in body
    assert "An alle von Acme" in body
    assert translation.get_language() == "en"


def test_a_label_follows_who_looks(german: None) -> None:
    assert str(Role.OWNER.label) == "Owner"
    with translation.override("de"):
        assert str(Role.OWNER.label) == "Inhaberin"


def test_labels_that_pages_show_can_be_translated() -> None:
    """Labels of choices that a template shows by `get_<field>_display`."""
    templates = [path.read_text() for path in (ROOT / "templates").rglob("*.*")]
    shown = {field for text in templates for field in re.findall(r"get_(\w+)_display", text)}
    assert {"role", "status"} <= shown
    plain = set()
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            labels = [label for _, label in field.choices or ()] if field.name in shown else []
            if not all(isinstance(label, Promise) for label in labels):
                plain.add(f"{model._meta.label}.{field.name}")
    assert plain == set(NAMES)


def test_makemessages_finds_every_mail() -> None:
    """Checked with the extraction that makemessages uses for templates."""
    for path in (ROOT / "templates").rglob("*.txt"):
        assert "gettext(" in extraction.templatize(path.read_text(), origin=str(path)), path
