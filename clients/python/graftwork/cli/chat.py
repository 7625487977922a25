"""`graftwork chat`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graftwork.chat import Usage
from graftwork.cli.output import Json, note, show, speaks_json
from graftwork.cli.session import client
from graftwork.client import Client


def chat(
    model: Annotated[str, typer.Argument(help="<base>, <adapter>, <adapter>@<alias> or <adapter>@v<n>.")],
    message: Annotated[str | None, typer.Argument(help="Message; - reads it from standard input.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    json: Json = False,
) -> None:
    """Chat with a model through the gateway; without a message, line by line until Ctrl-D."""
    options = {"temperature": temperature, "max_tokens": max_tokens}
    given = {name: value for name, value in options.items() if value is not None}
    messages = [{"role": "system", "content": system}] if system else []
    with client() as found:
        if message is not None:
            text = sys.stdin.read() if message == "-" else message
            messages.append({"role": "user", "content": text})
            _answer(found, model, messages, given)
            return
        while (line := _line()) is not None:
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": _answer(found, model, messages, given)})


def _answer(found: Client, model: str, messages: list[dict[str, str]], options: dict[str, float]) -> str:
    pieces = []
    with found.chat(model, messages, **options) as stream:
        for text in stream:
            pieces.append(text)
            if not speaks_json():
                sys.stdout.write(text)
                sys.stdout.flush()
    if not speaks_json():
        sys.stdout.write("\n")
    usage = stream.usage or Usage()
    told = {
        "text": "".join(pieces),
        "finish_reason": stream.finish_reason,
        "served_model": stream.served_model,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    show(told)
    note(f"[dim]{usage.prompt_tokens} + {usage.completion_tokens} tokens, {stream.finish_reason}[/]")
    return "".join(pieces)


def _line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
