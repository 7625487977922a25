"""Request parameters of scores, reranks and classifications.

They are vLLM's, with Cohere's and Jina's forms of documents. All texts are plain: images and chats are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.openai.kinds import Flag, Integer, Kind, Prompts, Schema
from contracts.openai.parameters import TRUNCATE

MAX_DOCUMENTS: Final = 2048
"""Most documents, pairs or inputs of one request."""
PAIR_FORMS: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""Names that vLLM's versions give the two sides of a score."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A text, or a list of 1 to `most`; none is empty. Required where its default is None.

    Attributes:
        objects: True if a text in a list may also be `{"text": "..."}`.
    """

    most: int
    objects: bool = False
    default: None = None

    def expected(self, value: Any) -> str | None:
        items = value if isinstance(value, list) else [value]
        if 0 < len(items) <= self.most and all(self._is_text(item, value) for item in items):
            return None
        objects = ' or objects {"text": "..."}' if self.objects else ""
        one = "a non-empty string" if self.most == 1 else f"a non-empty string or a list of 1 to {self.most}"
        return f"{one}{objects}; images and other content are not served here"

    def _is_text(self, item: Any, value: Any) -> bool:
        if self.objects and value is not item and isinstance(item, dict) and set(item) == {"text"}:
            item = item["text"]
        return type(item) is str and item != ""

    @property
    def schema(self) -> Schema:
        text: Schema = {"type": "string", "minLength": 1}
        item: Schema = text
        if self.objects:
            properties = {"text": text}
            item = {
                "anyOf": [
                    text,
                    {
                        "type": "object",
                        "properties": properties,
                        "required": ["text"],
                        "additionalProperties": False,
                    },
                ]
            }
        return {"anyOf": [text, {"type": "array", "minItems": 1, "maxItems": self.most, "items": item}]}


@dataclass(frozen=True, slots=True)
class OneText:
    """A non-empty text; required."""

    default: None = None

    def expected(self, value: Any) -> str | None:
        return None if type(value) is str and value else "a non-empty string"

    @property
    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


_COMMON: Final[Mapping[str, Kind]] = {
    "truncate_prompt_tokens": TRUNCATE,
    "use_activation": Flag(default=True),
}
_TEXTS: Final = Texts(MAX_DOCUMENTS)
SCORE: Final[Mapping[str, Kind]] = {
    **dict.fromkeys((name for form in PAIR_FORMS for name in form), _TEXTS),
    **_COMMON,
}
RERANK: Final[Mapping[str, Kind]] = {
    "query": OneText(),
    "documents": Texts(MAX_DOCUMENTS, objects=True),
    "top_n": Integer(0, MAX_DOCUMENTS),
    "return_documents": Flag(default=True),
    **_COMMON,
}
CLASSIFY_INPUT: Final = Prompts(MAX_DOCUMENTS)
CLASSIFY: Final[Mapping[str, Kind]] = {"input": CLASSIFY_INPUT, **_COMMON}


def texts_of(value: str | Sequence[Any]) -> list[str]:
    """Return checked texts as a list of strings."""
    items = [value] if isinstance(value, str) else value
    return [item if isinstance(item, str) else item["text"] for item in items]
