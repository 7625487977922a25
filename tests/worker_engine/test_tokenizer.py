"""Text as it streams: whole characters only, and never a part of a stop string."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_engine.tokenizer import ChatTokenizer, Detokenizer

TEXTS = ["日本語のテキスト", "a🏴‍☠️b👩🏽‍🚀c", "naïve — “quoted”", "пират 🦜"]


def stream(tokenizer: ChatTokenizer, text: str, stop: tuple[str, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop)
    pieces: list[str] = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        pieces.append(detokenizer.append(token))
        if detokenizer.stopped:
            return pieces
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_is_never_split(text: str, tiny_model: Path) -> None:
    """Every token is one byte here, so each of these characters spans two to four tokens."""
    tokenizer = ChatTokenizer(tiny_model)
    pieces = stream(tokenizer, text)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(text)


def test_bytes_that_are_no_character_come_out_at_the_end(tiny_model: Path) -> None:
    tokenizer = ChatTokenizer(tiny_model)
    detokenizer = Detokenizer(tokenizer)
    half = tokenizer.encode("日", add_special_tokens=False)[:2]
    assert [detokenizer.append(token) for token in half] == ["", ""]
    assert detokenizer.flush() == "\ufffd"


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab日", max_size=12), stops=st.lists(st.text("ab日", min_size=1, max_size=3), max_size=3))
def test_stops_are_found_wherever_tokens_end(
    text: str, stops: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Shown is exactly what precedes the stop string that is complete first."""
    pieces = stream(_byte_tokenizer(tmp_path_factory), text, tuple(stops))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert "".join(pieces) == text
        return
    heard = text[: min(ends)]
    assert "".join(pieces) == heard[: min(heard.find(stop) for stop in stops if stop in heard)]


_TOKENIZERS: list[ChatTokenizer] = []


def _byte_tokenizer(folders: pytest.TempPathFactory) -> ChatTokenizer:
    from tests.worker_engine.conftest import write_tokenizer

    if not _TOKENIZERS:
        folder = folders.mktemp("tokenizer")
        write_tokenizer(folder)
        _TOKENIZERS.append(ChatTokenizer(folder))
    return _TOKENIZERS[0]
