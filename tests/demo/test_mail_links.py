"""Links of e-mails are found in the logs, each once."""

from __future__ import annotations

from pathlib import Path

from demo.mail_links import MailLinks

MAIL = """[INFO] Task sign_up.send[1] received
Subject: Sign up for Graftwork
From: Graftwork <graftwork@localhost>
To: ada@example.com

Go on here:

http://127.0.0.1:8000/sign-up/abc
"""


def test_each_link_is_told_once_with_its_recipient(tmp_path: Path) -> None:
    log, other = tmp_path / "celery_long.log", tmp_path / "web.log"
    links = MailLinks((log, other), web="http://127.0.0.1:8000")
    assert list(links.fresh()) == []
    log.write_text(f"{MAIL}http://127.0.0.1:8000/half")
    assert list(links.fresh()) == [("ada@example.com", "http://127.0.0.1:8000/sign-up/abc")]
    with log.open("a") as file:
        file.write("-written\nGET http://127.0.0.1:8000/x\nhttp://elsewhere.test/x\n")
    other.write_text("To: bob@example.com\nhttp://127.0.0.1:8000/password/reset/key/1\n")
    assert list(links.fresh()) == [
        ("ada@example.com", "http://127.0.0.1:8000/half-written"),
        ("bob@example.com", "http://127.0.0.1:8000/password/reset/key/1"),
    ]
    assert list(links.fresh()) == []
