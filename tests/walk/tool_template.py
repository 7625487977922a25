"""The demo model with a chat template that knows tools: its own has none, and no prompt of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TEMPLATE: Final = "chat_template.jinja"
_TOOLS: Final = """{% if tools %}{{ '<|im_start|>system
Answer a question by a call: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Functions:
' }}{% for tool in tools %}{{ tool | tojson + '
' }}{% endfor %}{{ '<|im_end|>
' }}{% endif %}"""
_CONTENT: Final = "message['content']"
_WITH_CALLS: Final = "(message['content'] or message['tool_calls'] | tojson)"


def model_with_tools(model: Path, folder: Path) -> Path:
    """`folder/<model's name>`: the checkpoint's files by link, and a template that knows tools."""
    made = folder / model.name
    made.mkdir()
    for file in model.iterdir():
        if file.name != _TEMPLATE:
            (made / file.name).symlink_to(file.resolve())
    text = (model / _TEMPLATE).read_text()
    (made / _TEMPLATE).write_text(_TOOLS + text.replace(_CONTENT, _WITH_CALLS))
    return made
