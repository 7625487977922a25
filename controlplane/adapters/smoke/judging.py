"""What the figures of two generations are, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controlplane.adapters.smoke.base import CopyUnableError, GenerationBrokenError, Prober, Told
from controlplane.adapters.steps import StepStatus
from controlplane.errors import RefusedError

_ABOVE_NOISE: Final = 4.0
"""Times that a difference must exceed the base's from itself. Where the base repeats itself to the bit, as
the bundled worker does, any difference is the adapter's: one on a single module may move no token by
0.001."""
_WORSE: Final = 3.0
"""Nats a token: a prompt each of whose tokens is e**3 = 20 times less probable is worth a look."""
_BROKEN: Final = 2.0
_GUESSING: Final = 0.5
"""Nats a token. As bad as blind guessing, and 2 worse than the base: broken weights or scaling end there,
no training does."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """Figures of one comparison; logarithms are natural, differences are of the prompt's tokens."""

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
    """What the figures mean; raises RefusedError when they mean that the adapter is broken."""
    base, adapter = -smoke.base_mean_logprob, -smoke.adapter_mean_logprob
    figures = f"{adapter:.2f} nats a token beside the base's {base:.2f}"
    guessing = math.log(vocabulary) if vocabulary else math.inf
    if adapter > max(guessing - _GUESSING, base + _BROKEN):
        raise RefusedError(
            f"with the adapter the prompt costs {figures}, and blind guessing {guessing:.2f}: its weights or"
            " its scaling (lora_alpha, r) are broken; compare with the training run's loss"
        )
    if smoke.max_difference <= _ABOVE_NOISE * smoke.noise:
        return "warned", (
            "it changes nothing here: no token's log-probability differs by more than"
            f" {smoke.max_difference:.1g} from the base's, which differ by {smoke.noise:.1g} among"
            " themselves."
            " Was it saved before training, or does it change tokens alone that this English prompt lacks?"
        )
    changes = f"log-probabilities differ by {smoke.mean_difference:.2g} on average"
    if adapter > base + _WORSE:
        return "warned", f"plain English costs {figures}: look at its answers before using it; {changes}"
    return "done", f"{figures}; {changes}, at most {smoke.max_difference:.2g}"


def compare(prober: Prober, *, copy: str, progress: Callable[[], None]) -> Smoke:
    """Asks the base, the adapter and the base again; `copy` is who is asked.

    A token's difference is that to the nearer of the base's two answers, so that what the copy's load changes
    between them is not taken for the adapter's.

    Raises as `Prober.ask` does, but for GenerationBrokenError: of the adapter that is a RefusedError.
    """
    base = _ask_base(prober)
    progress()
    adapted = _ask_adapter(prober)
    again = _ask_base(prober)
    if not len(base.logprobs) == len(again.logprobs) == len(adapted.logprobs):
        raise CopyUnableError("it cuts one prompt into different tokens: are all copies of one base?")
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


def _ask_base(prober: Prober) -> Told:
    try:
        return prober.ask(adapted=False)
    except GenerationBrokenError as error:
        raise CopyUnableError(f"it cannot generate with the base alone: {error}") from error


def _ask_adapter(prober: Prober) -> Told:
    """An engine that broke for another's sake fails once, an adapter that explodes each time."""
    try:
        return prober.ask(adapted=True)
    except GenerationBrokenError:
        pass
    try:
        return prober.ask(adapted=True)
    except GenerationBrokenError as error:
        raise RefusedError(
            f"a worker cannot generate with it: {error}. With the base alone it can, so the adapter's weights"
            " explode: look at lora_alpha, r and the largest values of its lora_B"
        ) from error


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
