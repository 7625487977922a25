"""Which guesses a sequence keeps: rejection sampling whose one draw is both the test and the way out.

A guess x at a place where the model's distribution (tempered, truncated, edited) is p is to be kept with the
probability p(x), and else replaced by a draw from p without x, for the outcome to be distributed as p: the
rule of Leviathan et al. 2023 (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318) for a proposal that
is one token. Drawing y from p and keeping x where y is x does exactly that: y is x with the probability p(x),
and where it is not, y is distributed as p without x. And since y is drawn with the number that the sequence's
random stream has for that place, as it would be without any guess, the tokens are those of a run without
speculation: a seed gives the same ones, and greedy decoding is the case in which p is a single token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from worker_engine.draft import Draft
from worker_engine.sampler import Sampled


def kept(drafts: Items[Draft], sampled: Items[Sampled | None]) -> Items[Sampled | None]:
    """What the sequence gets of a step: one token more than guesses were right, from the first on.

    Args:
        drafts: the guesses of one sequence, in order.
        sampled: [1 + drafts] what was drawn after its last known token and after each guess; None for logits
            that are not finite.

    Returns:
        A beginning of `sampled`. A row counts only when all guesses before it were right, so one without
        finite logits behind a wrong guess is nobody's.
    """
    count = 0
    for draft, drawn in zip(drafts, sampled, strict=False):
        if drawn is None or drawn.token_id != draft.token_id:
            break
        count += 1
    return sampled[: count + 1]
