"""Languages of pages and e-mails: English, and those compiled in `controlplane/locale/`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from django.conf.locale import LANG_INFO
from django.utils.translation import to_language

SOURCE: Final = "en"
"""Language of the texts in templates and code."""


def languages(folder: Path) -> dict[str, str]:
    """Code -> what the language calls itself, English first.

    Not all that Django knows: a page in one without a catalogue would be English among Django's own words.
    """
    codes = {to_language(path.parts[-3]) for path in folder.glob("*/LC_MESSAGES/django.mo")}
    return {
        code: str(LANG_INFO.get(code, {}).get("name_local", code))
        for code in (SOURCE, *sorted(codes - {SOURCE}))
    }
