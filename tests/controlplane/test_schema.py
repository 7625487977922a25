"""The OpenAPI schema and its page."""

from __future__ import annotations

import re

import pytest
from django.core.management import call_command
from django.test import Client


@pytest.mark.costly("generates and validates the whole schema")
def test_the_schema_generates_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn")
    text = capsys.readouterr().out
    assert "/api/v1/adapters/{name}/versions" in text
    assert "text/csv" in text
    assert "multipart/form-data" in text


@pytest.mark.django_db
def test_the_docs_page_asks_no_other_host() -> None:
    text = Client().get("/api/docs/").content.decode()
    assert "swagger-ui-bundle.js" in text
    assert re.findall(r"""(?:src|href)=["']?(https?:)?//""", text) == []
