"""Text as it streams: whole characters only, and never a part of a stop string."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from worker_engine.protocol import SamplingParams
from worker_engine.text.tokenizer import ChatTokenizer, Detokenizer

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
    from tests.worker_engine.tiny_model import write_tokenizer

    if not _TOKENIZERS:
        folder = folders.mktemp("tokenizer")
        write_tokenizer(folder)
        _TOKENIZERS.append(ChatTokenizer(folder))
    return _TOKENIZERS[0]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30), noise=st.binary(max_size=6), seed=st.integers(0, 99))
def test_pieces_are_whole_characters_whatever_the_tokens(
    text: str, noise: bytes, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any text with any bytes put into it: pieces make up the whole, none ends in half a character."""
    tokenizer = _byte_tokenizer(tmp_path_factory)
    raw = bytearray(text.encode())
    at = seed % (len(raw) + 1)
    raw[at:at] = noise
    by_byte = {tokenizer.token_bytes(token)[0]: token for token in range(256)}
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.append(by_byte[byte]) for byte in raw]
    whole = bytes(raw).decode(errors="replace")
    assert "".join([*pieces, detokenizer.flush()]) == whole
    for end in range(len(pieces)):
        shown = "".join(pieces[: end + 1])
        assert whole.startswith(shown)


def test_every_byte_has_its_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = _byte_tokenizer(tmp_path_factory)
    assert {tokenizer.token_bytes(token) for token in range(256)} == {bytes([byte]) for byte in range(256)}
    assert tokenizer.token_bytes(300) == b""
    ids = tokenizer.encode("日", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == "日".encode()


@pytest.fixture(scope="module")
def sentencepiece_like(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """Llama 2's and Mistral's kind: spaces as U+2581, bytes as <0xNN>, the text's first space dropped."""
    folder = tmp_path_factory.mktemp("pieces")
    names = ["<s>", "[TOOL_CALLS]", "▁Hello", "▁world", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(
        vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True, unk_token="!"
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "[TOOL_CALLS]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return ChatTokenizer(folder)


def test_a_completion_keeps_its_leading_space(sentencepiece_like: ChatTokenizer) -> None:
    params = SamplingParams(5)
    behind = Detokenizer.for_completion(sentencepiece_like, params, (0, 2))
    assert [behind.append(3), behind.append(4), behind.flush()] == [" world", "!", ""]
    first = Detokenizer.for_completion(sentencepiece_like, params, (0,))
    assert first.append(2) == "Hello"


def test_sentencepiece_bytes(sentencepiece_like: ChatTokenizer) -> None:
    assert [sentencepiece_like.token_bytes(token) for token in (2, 4, 5 + 0xE6)] == [b" Hello", b"!", b"\xe6"]
    assert sentencepiece_like.special_token_id("[TOOL_CALLS]") == 1
    assert sentencepiece_like.special_token_id("!") is None
    detokenizer = Detokenizer(sentencepiece_like)
    assert [detokenizer.append(5 + byte) for byte in "é日".encode()] == ["", "é", "", "", "日"]


def test_special_tokens_are_shown_when_asked(sentencepiece_like: ChatTokenizer) -> None:
    assert Detokenizer(sentencepiece_like).append(1) == ""
    assert Detokenizer(sentencepiece_like, skip_special_tokens=False).append(1) == "[TOOL_CALLS]"


def test_stops_may_be_shown_and_wait_for_min_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = _byte_tokenizer(tmp_path_factory)

    def visible_text(**options: Any) -> str:
        detokenizer = Detokenizer(tokenizer, ("ab", "b"), **options)
        text = ""
        for token in tokenizer.encode("xabyab!", add_special_tokens=False):
            text += detokenizer.append(token)
            if detokenizer.stopped:
                return text
        return text + detokenizer.flush()

    assert visible_text() == "x"
    assert visible_text(include_stop=True) == "xab"
    assert visible_text(min_tokens=3) == "xaby"
    assert visible_text(min_tokens=3, include_stop=True) == "xabyab"
    assert visible_text(min_tokens=7) == "xabyab!"
