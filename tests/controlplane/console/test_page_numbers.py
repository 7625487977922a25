"""Numbers in markup have a decimal point in all languages: charts' coordinates, inputs' values, data."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from tests.controlplane.conftest import graftwork as graftwork
from tests.ui.filled import world_fill
from tests.ui.pages import STAFF_PAGES, TENANT_PAGES, opening

pytestmark = pytest.mark.django_db


def numbers(client: Client, path: str, language: str) -> Counter[str]:
    text = client.get(path, headers={"Accept-Language": language}).content.decode()
    assert f'<html lang="{language}"' in text
    tags = " ".join(re.findall(r"<[^>]+>", text))
    tags = re.sub(r'\b(?:aria-label|title)="[^"]*"', "", tags)  # read by people
    return Counter(re.findall(r"\d+,\d+", tags))


@pytest.mark.costly("renders every page")
def test_no_number_in_markup_gets_a_decimal_comma(
    graftwork: Path, settings: Settings, tmp_path: Path
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sign_up="open")
    settings.LANGUAGES = [("en", "English"), ("de", "Deutsch")]
    world = world_fill(tmp_path)
    other = {}
    for name in (*TENANT_PAGES, *STAFF_PAGES):
        page = opening(world, name)
        assert page.client is not None
        if gained := numbers(page.client, page.path, "de") - numbers(page.client, page.path, "en"):
            other[name] = sorted(gained)
    assert other == {}
