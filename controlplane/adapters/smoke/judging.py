"""Compares generations with and without the adapter, and judges the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controlplane.adapters.smoke.base import CopyUnableError, GenerationBrokenError, Prober, ScoredCompletion
from controlplane.adapters.steps import StepStatus
from controlplane.errors import RefusedError

_ABOVE_NOISE: Final = 4.0
"""Factor by which a difference must exceed the base's difference from itself. The bundled worker repeats the
base exactly, so there any difference is the adapter's. An adapter on a single module may move no token by
0.001."""
_WORSE: Final = 3.0
"""Nats per token: warn if each of the prompt's tokens is e**3 = 20 times less probable."""
_BROKEN: Final = 2.0
_GUESSING: Final = 0.5
"""Nats per token. Only broken weights or scaling make an adapter as bad as blind guessing and 2 nats worse
than the base."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """Figures of one comparison: natural logarithms, and differences over the prompt's tokens."""

    copy: str
    tokens: int
    base_mean_logprob: float
    adapter_mean_logprob: float
    mean_difference: float
    max_difference: float
    noise: float
    base_text: str
    adapter_text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(smoke: Smoke, *, vocabulary: int | None) -> tuple[StepStatus, str]:
    """Return the step's status and text for the figures. Raises RefusedError for a broken adapter."""
    base, adapter = -smoke.base_mean_logprob, -smoke.adapter_mean_logprob
    figures = f"{adapter:.2f} nats per token with the adapter, {base:.2f} without"
    guessing = math.log(vocabulary) if vocabulary else math.inf
    if adapter > max(guessing - _GUESSING, base + _BROKEN):
        raise RefusedError(
            f"the prompt's loss is {figures}, and {guessing:.2f} for blind guessing: the adapter's"
            " weights or scaling (lora_alpha, r) are broken; compare with the training run's loss"
        )
    if smoke.max_difference <= _ABOVE_NOISE * smoke.noise:
        return "warned", (
            "the adapter changes nothing: no token's log-probability differs by more than"
            f" {smoke.max_difference:.1g} from the base model's, which differs by {smoke.noise:.1g}"
            " between runs."
            " Was it saved before training, or does it change only tokens that this English prompt lacks?"
        )
    changes = f"log-probabilities differ by {smoke.mean_difference:.2g} on average"
    if adapter > base + _WORSE:
        text = f"the loss on plain English is {figures}: check the adapter's answers before use; {changes}"
        return "warned", text
    return "done", f"{figures}; {changes}, at most {smoke.max_difference:.2g}"


def compare(prober: Prober, *, copy: str, progress: Callable[[], None]) -> Smoke:
    """Query the base, the adapter and the base again on `copy`, and return the figures.

    A token's difference is that to the nearer of the base's two answers, so that effects of the copy's load
    are not counted as the adapter's.

    Raises as `Prober.ask` does, except that GenerationBrokenError for the adapter becomes a RefusedError.
    """
    base = _ask_base(prober)
    progress()
    adapted = _ask_adapter(prober)
    again = _ask_base(prober)
    if not len(base.logprobs) == len(again.logprobs) == len(adapted.logprobs):
        raise CopyUnableError(
            "it split the same prompt into different tokens: check that its replicas "
            "serve the same base model"
        )
    differences = [
        min(abs(own - first), abs(own - second))
        for own, first, second in zip(adapted.logprobs, base.logprobs, again.logprobs, strict=True)
    ]
    return Smoke(
        copy=copy,
        tokens=len(base.logprobs),
        base_mean_logprob=_mean(base.logprobs),
        adapter_mean_logprob=_mean(adapted.logprobs),
        mean_difference=_mean(differences),
        max_difference=max(differences),
        noise=max(abs(one - other) for one, other in zip(base.logprobs, again.logprobs, strict=True)),
        base_text=base.text,
        adapter_text=adapted.text,
    )


def _ask_base(prober: Prober) -> ScoredCompletion:
    try:
        return prober.ask(adapted=False)
    except GenerationBrokenError as error:
        raise CopyUnableError(f"it cannot generate with the base model: {error}") from error


def _ask_adapter(prober: Prober) -> ScoredCompletion:
    """Query with the adapter, and once more on failure: only an adapter at fault fails twice."""
    try:
        return prober.ask(adapted=True)
    except GenerationBrokenError:
        pass
    try:
        return prober.ask(adapted=True)
    except GenerationBrokenError as error:
        raise RefusedError(
            f"a worker cannot generate with the adapter: {error}. It can with the base model, so the "
            f"adapter's"
            " weights explode: check lora_alpha, r and the largest values of lora_B"
        ) from error


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
