"""Code snippets to copy: with the gateway's real address and a model's real name, never a key."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Snippet:
    """One way to call a model; `slug` names its tab."""

    slug: str
    title: str
    code: str


def snippets(model: str) -> tuple[Snippet, ...]:
    """Return snippets that call `model` (a name as the gateway takes it) by curl, openai and LangChain."""
    base_url = settings.GRAFTWORK.gateway_url
    curl = f"""curl -N {base_url}/chat/completions \\
  -H "Authorization: Bearer $GRAFTWORK_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{
    "model": "{model}",
    "messages": [{{"role": "user", "content": "Hello! Who are you?"}}],
    "max_tokens": 64,
    "stream": true
  }}'"""
    python = f"""import os

from openai import OpenAI

client = OpenAI(base_url="{base_url}", api_key=os.environ["GRAFTWORK_API_KEY"])
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello! Who are you?"}}],
    max_tokens=64,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)"""
    return (
        Snippet("curl", "curl", curl),
        Snippet("python", "openai for Python", python),
        Snippet("langchain", "LangChain", _langchain(base_url, model)),
    )


def _langchain(base_url: str, model: str) -> str:
    return f"""import os

from langchain_openai import ChatOpenAI

llm = ChatOpenAI(
    base_url="{base_url}",
    api_key=os.environ["GRAFTWORK_API_KEY"],
    model="{model}",
    max_tokens=64,
)
for chunk in llm.stream("Hello! Who are you?"):
    print(chunk.text, end="", flush=True)"""
