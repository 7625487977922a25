"""Links of e-mails are found in the mailbox, each once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.test import Client, override_settings

from controlplane.platform.mailbox import mailbox_read
from demo.mail_links import MailLinks

WEB = "http://127.0.0.1:8000"


def send(folder: Path, *mails: tuple[str, str]) -> None:
    """Send e-mails over one connection, as `MailServer` does: they share a file."""
    backend = get_connection("django.core.mail.backends.filebased.EmailBackend", file_path=folder)
    backend.open()
    for recipient, body in mails:
        EmailMessage("Hello", body, "from@test", [recipient], connection=backend).send()
    backend.close()


def test_each_link_is_printed_once_with_its_recipient(tmp_path: Path) -> None:
    folder = tmp_path / "mail"
    send(folder, ("old@example.com", f"{WEB}/sign-up/printed-by-an-earlier-start"))
    links = MailLinks(folder, web=WEB)
    assert list(links.fresh()) == []
    send(
        folder,
        ("ada@example.com", f"Go on here:\n\n{WEB}/sign-up/abc\n\nhttp://elsewhere.test/x"),
        ("bob@example.com", f"{WEB}/password/reset/key/1"),
    )
    assert list(links.fresh()) == [
        ("ada@example.com", f"{WEB}/sign-up/abc"),
        ("bob@example.com", f"{WEB}/password/reset/key/1"),
    ]
    assert list(links.fresh()) == []


def test_an_e_mail_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    send(tmp_path, ("ada@example.com", "whole"))
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes() + b"Subject: half\nTo: bob@example.com\n\nhal")
    assert [mail.recipient for mail in mailbox_read(tmp_path)] == ["ada@example.com"]


@pytest.mark.django_db
def test_the_mailbox_page_is_the_demos_alone(client: Client, tmp_path: Path) -> None:
    send(tmp_path, ("ada@example.com", f"<b>Open</b>\n{WEB}/sign-up/abc"))
    with override_settings(EMAIL_FILE_PATH=tmp_path):
        assert client.get("/mailbox/").status_code == 404
    with override_settings(GRAFTWORK=_with_links()):
        assert client.get("/mailbox/").status_code == 404
    with override_settings(GRAFTWORK=_with_links(), EMAIL_FILE_PATH=tmp_path):
        page = client.get("/mailbox/")
    assert page.status_code == 200
    assert f'href="{WEB}/sign-up/abc"' in page.text
    assert "<b>Open</b>" not in page.text


def _with_links() -> object:
    return replace(settings.GRAFTWORK, show_mail_links=True)
