"""Scores, reranks and classifications: their texts, the tokens to reserve for them, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.openai.kinds import prompts_of
from contracts.openai.scoring import PAIR_FORMS, texts_of
from gateway.api.dialect import ApiDialect
from gateway.api.prompts import pair_bytes
from gateway.api.schema import CLASSIFY, RERANK, SCORE, Call
from gateway.errors import BadRequest, MissingParameter, UpstreamFailed

SPECIAL_TOKENS: Final = 16
"""Most tokens that a tokenizer adds to one text."""
TEMPLATE_TOKENS: Final = 128
"""Reserved for the chat template of one pair before the base model's is measured. The longest template among
vLLM's examples, that of mxbai-rerank-v2, has about 430 bytes, with four bytes a token."""
MAX_TEMPLATE_TOKENS: Final = 512
"""Most tokens reserved for the chat template of one pair, whatever was measured."""
_LISTS: Final = {SCORE: "data", RERANK: "results", CLASSIFY: "data"}
_SHOWS_DOCUMENTS: Final = "return_documents"


class ScoringDialect(ApiDialect):
    """vLLM's form in both directions, with one spelling of each request.

    Two sides of a score become `text_1` and `text_2`, which every version of vLLM knows; documents become
    plain texts. vLLM always returns a rerank's documents, so `return_documents` is applied to its answer.
    """

    def __init__(self, call: Call) -> None:
        """Raises BadRequest, MissingParameter."""
        super().__init__(call)
        parameters = call.parameters
        self._shows_documents = parameters.pop(_SHOWS_DOCUMENTS, True)
        if call.path == SCORE:
            _unify(parameters)
        elif call.path == RERANK:
            parameters["documents"] = texts_of(parameters["documents"])

    def whole(self, body: bytes) -> bytes:
        """Return the answer with the client's model name. Raises UpstreamFailed."""
        call = self.call
        try:
            value = orjson.loads(body)
            items = value[_LISTS[call.path]]
            if not isinstance(items, list):
                raise TypeError
            if not self._shows_documents:
                for item in items:
                    item.pop("document", None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UpstreamFailed(f"The backend's answer is not one of {call.path}.") from error
        # vLLM names the base model even where an adapter has answered.
        return orjson.dumps({**value, "model": call.model})


def prompt_bound(call: Call, max_model_len: int, template: int = TEMPLATE_TOKENS) -> int:
    """Return an upper bound of the request's prompt tokens over all its texts or pairs.

    A token of text has at least one byte, and no prompt is longer than the model's context.

    Args:
        template: most tokens that the server's chat template adds to one pair.
    """
    limit = max_model_len
    if (truncate := call.parameters.get("truncate_prompt_tokens", -1)) > 0:
        limit = min(limit, truncate)
    added = SPECIAL_TOKENS if call.path == CLASSIFY else template
    return sum(min(limit, length + added) for length in _lengths(call))


def _lengths(call: Call) -> list[int]:
    """Return the bytes of each pair or text; for token ids their number."""
    if call.path != CLASSIFY:
        return pair_bytes(call.parameters)
    prompts = prompts_of(call.parameters["input"])
    return [len(prompt.encode(errors="replace") if type(prompt) is str else prompt) for prompt in prompts]


def _unify(parameters: dict[str, Any]) -> None:
    """Replace a score's two sides by lists `text_1` and `text_2`."""
    form = _form(parameters)
    first, second = (texts_of(parameters.pop(name)) for name in form)
    if len(first) not in (1, len(second)):
        raise BadRequest(
            f"{form[0]} must be one text, or as many as {form[1]} has: it has {len(first)}, {form[1]} has "
            f"{len(second)}.",
            param=form[0],
        )
    parameters["text_1"], parameters["text_2"] = first, second


def _form(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the two sides. Raises BadRequest, MissingParameter."""
    given = [name for form in PAIR_FORMS for name in form if name in parameters]
    names = list(dict.fromkeys(given))
    for form in PAIR_FORMS:
        if set(names) == set(form):
            return form
    accepted = ", ".join(f"{one} with {other}" for one, other in PAIR_FORMS)
    if len(names) < 2:
        missing = next((other for one, other in PAIR_FORMS if names == [one]), "text_1")
        raise MissingParameter(f"{missing} is required. A score takes {accepted}.", param=missing)
    raise BadRequest(f"{', '.join(names)} do not belong together. A score takes {accepted}.", param=names[-1])
