"""A person's data: each refusal names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.recipes.progress import Code, JobError
from optimizer.prompt_lines import BUNDLED_PROMPTS, BUNDLED_TEXTS, read_lines


def test_all_forms_are_read_and_blank_lines_are_not(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(
        '{"prompt": "a", "expected": "b"}\n\n'
        '{"messages": [{"role": "user", "content": "c"}], "max_tokens": 3}\n'
        '{"text": "d", "id": 7}\n'
    )
    prompt, chat, text = read_lines(path)
    assert (prompt.number, prompt.text, prompt.expected) == (1, "a", "b")
    assert (chat.number, chat.plain, chat.max_tokens) == (3, "c", 3)
    assert (text.number, text.plain, text.messages) == (4, "d", None)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "is not JSON"),
        (b'{"prompt": "\xff"}', "is not UTF-8"),
        (b"[" * 200_000, "is nested too deeply"),
        (rb'{"prompt": "\ud800"}', "has half of a surrogate pair"),
        (b"[]", "must be an object, got list"),
        (b'{"question": "x"}', "must have one of prompt, messages, text, got question"),
        (b'{"prompt": "x", "text": "y"}', "must have one of"),
        (b'{"prompt": ""}', "prompt must be a text that is not empty"),
        (b'{"prompt": 5}', "prompt must be a text"),
        (b'{"messages": []}', "messages must be a list that is not empty"),
        (b'{"messages": [{"role": "cook", "content": "x"}]}', "messages[0].role must be one of"),
        (b'{"messages": [{"role": "user"}]}', "messages[0].content must be a text"),
        (b'{"prompt": "x", "expected": 1}', "expected must be a text"),
        (b'{"prompt": "x", "max_tokens": 0}', "max_tokens must be a whole number"),
        (b'{"prompt": "' + b"x" * (1 << 20) + b'"}', "is longer than 1 MiB"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(JobError) as refused:
        read_lines(path)
    assert refused.value.code is Code.BAD_DATA
    assert f"{path}, line 3: {told}" in str(refused.value)


def test_too_few_lines_and_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(JobError, match="has 1 lines of data, at least 2 are needed"):
        read_lines(path, least=2)
    with pytest.raises(JobError, match="cannot read"):
        read_lines(tmp_path / "none")


def test_what_is_bundled_is_sound() -> None:
    assert len(read_lines(BUNDLED_PROMPTS)) >= 48
    assert len(read_lines(BUNDLED_TEXTS)) >= 24
