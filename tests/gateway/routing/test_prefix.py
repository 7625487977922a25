"""The part of a prompt that decides its routing."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.routing.prefix import PREFIX_CHARACTERS, prompt_prefix

LONG = "x" * PREFIX_CHARACTERS


def chat(*contents: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def test_turns_of_a_chat_share_their_beginning_once_it_is_long() -> None:
    assert prompt_prefix(chat(LONG, "a"), "s") == prompt_prefix(chat(LONG, "b", "c"), "s")
    assert prompt_prefix(chat("short", "a"), "s") != prompt_prefix(chat("short", "b"), "s")


def test_tenants_share_none() -> None:
    assert prompt_prefix(chat(LONG), "aa") != prompt_prefix(chat(LONG), "bb")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"prompt": LONG + "a"}, {"prompt": LONG + "b"}, True),
        ({"prompt": "a" + LONG}, {"prompt": "b" + LONG}, False),
        ({"prompt": list(range(5000))}, {"prompt": list(range(4000))}, True),
        ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}, False),
        (chat([{"type": "text", "text": "a"}]), chat([{"type": "text", "text": "b"}]), False),
        (chat(None), chat(None), True),
        (chat("\ud800"), chat("\ud800"), True),
        ({"prompt": ["a", "b"]}, {"prompt": ["a", "c"]}, True),
        ({"prompt": ["a", "b"]}, {"prompt": "a"}, True),
        ({"input": [[1, 2], [3]]}, {"input": [[1, 4], [3]]}, False),
        ({}, {}, True),
    ],
)
def test_other_forms(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (prompt_prefix(one, "s") == prompt_prefix(other, "s")) == same


def test_chats_with_images_share_what_is_alike() -> None:
    """Files of one format begin and end alike, and a megabyte is not read for a choice of a copy."""

    def image(data: str) -> dict[str, object]:
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}

    one, other = ("iVBOR" * 99 + pixels * 9_999 + "AAAAElFTkSuQmCC" for pixels in ("a", "b"))
    text = {"type": "text", "text": "hi"}
    assert prompt_prefix(chat([text, image(one)], "a"), "s") == prompt_prefix(
        chat([text, image(one)], "a"), "s"
    )
    assert prompt_prefix(chat([text, image(one)]), "s") != prompt_prefix(chat([text, image(other)]), "s")
    assert prompt_prefix(chat(["hi", image(one)]), "s") != prompt_prefix(chat(["ho", image(one)]), "s")
    assert len(prompt_prefix(chat([image(one)] * 64), "s")) < 2 * PREFIX_CHARACTERS
    long = [{"type": "text", "text": LONG}, image(one)]
    assert prompt_prefix(chat(long), "s") == prompt_prefix(chat(LONG), "s")
