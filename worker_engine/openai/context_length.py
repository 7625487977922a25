"""Refusals of requests that are longer than the context, in the words that clients look for.

litellm and LangChain recognise them by "maximum context length is" and fall back to another model.
"""

from __future__ import annotations

from worker_engine.errors import ContextLengthExceeded


def chat_too_long(
    limit: int, prompt: int, completion: int | None, *, reason: str = ""
) -> ContextLengthExceeded:
    """Return the refusal of a chat.

    Args:
        limit: tokens that prompt and completion may have together.
        completion: None where the request leaves its length open.
        reason: a sentence about a limit that is not the model's own.
    """
    if completion is None:
        text = f"your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    else:
        text = (
            f"you requested {prompt + completion} tokens ({prompt} in the messages, {completion} in the "
            "completion). Please reduce the length of the messages or completion."
        )
    return _refusal(f"{_limit(limit)}. However, {text}", reason, "messages")


def prompt_too_long(
    limit: int, prompt: int, completion: int, *, param: str = "prompt", place: str = "", reason: str = ""
) -> ContextLengthExceeded:
    """Return the refusal of a completion, or of an embedding's input, whose `completion` is 0.

    Args:
        param: the request's field at fault.
        place: `[2]` for the third of several prompts.
    """
    text = (
        f"{_limit(limit)}, however you requested {prompt + completion} tokens ({prompt} in your "
        f"{param}{place}; {completion} for the completion). Please reduce your {param}; or completion length."
    )
    return _refusal(text, reason, param)


def text_too_long(
    limit: int, characters: int, most: int, *, param: str, place: str = ""
) -> ContextLengthExceeded:
    """Return the refusal of a text whose tokens are not counted, since its length alone tells.

    Args:
        most: characters of a text that could have `limit` tokens.
    """
    text = (
        f"{_limit(limit)}. However, you sent {characters} characters in the {param}{place}, more than "
        f"{most}. Please reduce the length of the {param}."
    )
    return _refusal(text, "", param)


def _limit(limit: int) -> str:
    return f"This model's maximum context length is {limit} tokens"


def _refusal(text: str, reason: str, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(f"{text} {reason}".rstrip(), param=param)
