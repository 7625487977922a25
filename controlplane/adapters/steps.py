"""The steps of a validation, as shown to users."""

from __future__ import annotations

from typing import Final, Literal, get_args

STEPS: Final = {
    "files": "Files received",
    "config": "Configuration",
    "header": "Safetensors structure",
    "tensors": "Tensors against the base model",
    "values": "Finite values",
    "smoke": "Generation beside the base model",
    "publish": "Stored and routed",
}
"""Name -> title, in order."""

StepStatus = Literal["waiting", "running", "done", "warned", "skipped", "failed"]
"""`warned` and `skipped` keep no version from being ready; the detail says why."""
STATUSES: Final[tuple[str, ...]] = get_args(StepStatus)
Step = dict[str, str]


def first_steps() -> list[Step]:
    """Every step, waiting."""
    return [
        {"name": name, "title": title, "status": "waiting", "detail": ""} for name, title in STEPS.items()
    ]


def set_step(steps: list[Step], name: str, status: StepStatus, detail: str = "") -> list[Step]:
    """A copy of `steps` with one changed."""
    changed = {"status": status, "detail": detail}
    return [{**step, **changed} if step["name"] == name else step for step in steps]
