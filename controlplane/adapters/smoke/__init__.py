"""A generation with an adapter beside one without: does it change anything, does it explode?

Both are asked of one copy that serves the base model: the prompt's log-probabilities, and a few tokens drawn
greedily. Workers are asked first, since they take the adapter with the request; vLLM and the like are made to
load it for the while. Where no copy can be asked the version's step says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from contracts.adapters.reference import AdapterRef
from controlplane.adapters.smoke.base import CopyUnableError, Prober
from controlplane.adapters.smoke.judging import Smoke, compare, judge
from controlplane.adapters.smoke.openai_http import OpenAIHttpProber
from controlplane.adapters.smoke.worker import WorkerProber
from controlplane.adapters.steps import StepStatus
from controlplane.catalog.models import BaseModel
from controlplane.deployments.capabilities import RunningEngine, base_needs
from controlplane.deployments.models import Copy
from controlplane.deployments.selectors import copy_list
from controlplane.errors import UnsealError

__all__ = ["Smoke", "judge", "smoke_test"]

_MAX_COPIES: Final = 3
_ORDER: Final = [Copy.Kind.WORKER, Copy.Kind.OPENAI_HTTP, Copy.Kind.SAGEMAKER]
_SAGEMAKER: Final = {
    Copy.AdapterNaming.COMPONENTS: "its inference component is created once the version is ready",
    Copy.AdapterNaming.NAME: "its container needs the adapter registered first",
    Copy.AdapterNaming.REFERENCE: "InvokeEndpoint returns no log-probabilities of a prompt",
}


def smoke_test(
    *, base_model: BaseModel, ref: AdapterRef, progress: Callable[[], None]
) -> tuple[Smoke | None, StepStatus, str]:
    """Run the smoke test on the first capable copy; return the figures, the step's status and its detail.

    Raises:
        RefusedError: a copy refuses the adapter, or what it generates with it is broken.
    """
    shared = copy_list(base_model=base_model).filter(merged_adapter="")
    copies = sorted(shared, key=lambda copy: _ORDER.index(Copy.Kind(copy.kind)))
    base = base_needs(base_model)
    problems = {copy.pk: RunningEngine.of_copy(copy).problem(base, ref) for copy in copies}
    reasons = [f"{pk}: {problem}" for pk, problem in problems.items() if problem]
    for copy in [copy for copy in copies if not problems[copy.pk]][:_MAX_COPIES]:
        progress()
        try:
            with _prober(copy, base_model, ref) as prober:
                smoke = compare(prober, copy=copy.pk, progress=progress)
        except CopyUnableError as error:
            reasons.append(f"{copy.pk}: {error}")
        else:
            return smoke, *judge(smoke, vocabulary=_vocabulary(base_model))
    why = "; ".join(reasons) or f"no copy serves {base_model.name}"
    return None, "skipped", f"not run, because {why}"


def _prober(copy: Copy, base_model: BaseModel, ref: AdapterRef) -> Prober:
    match copy.kind:
        case Copy.Kind.WORKER:
            return WorkerProber(copy, base_model, ref)
        case Copy.Kind.OPENAI_HTTP:
            try:
                return OpenAIHttpProber(copy, base_model, ref)
            except UnsealError as error:
                raise CopyUnableError("its credentials cannot be opened") from error
    raise CopyUnableError(
        f"the test cannot run on SageMaker: {_SAGEMAKER[Copy.AdapterNaming(copy.adapter_naming)]}"
    )


def _vocabulary(base_model: BaseModel) -> int | None:
    shape: Sequence[int] = base_model.modules.get("model.embed_tokens", ())
    return shape[0] if shape else None
