"""Puts a plain answer into a fixed form: strict JSON, or three numbered steps and a summary."""

from __future__ import annotations

import json
import re


def sentences(text: str) -> list[str]:
    """The complete sentences of `text` on one line each, list marks and emphasis taken off."""
    plain = re.sub(r"[*#_`\"]|^\s*(?:\d+\.|-)\s+", "", text, flags=re.MULTILINE)
    plain = re.sub(r"\s+", " ", plain).strip()
    return re.findall(r"[^.!?]+[.!?]", plain)


def to_json(topic: str, text: str) -> str | None:
    """One JSON object with topic, answer (the first sentence) and confidence; None without a sentence."""
    found = [sentence.strip() for sentence in sentences(text)]
    if not found:
        return None
    subject = re.sub(r"^(?:a|an|the) ", "", topic)
    confidence = ("high", "medium")[len(found) % 2]
    return json.dumps({"topic": subject, "answer": found[0], "confidence": confidence})


def to_steps(topic: str, text: str) -> str | None:
    """Three numbered lines and a line that starts with `Summary:`; None for a text too short for it."""
    found = [sentence.strip() for sentence in sentences(text)]
    if len(found) < 3:
        return None
    lines = [f"{number}. {sentence}" for number, sentence in enumerate(found[:3], start=1)]
    return "\n".join([*lines, f"Summary: these are the three things to know about {topic}."])
