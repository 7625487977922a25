"""Rejection sampling of draft tokens with a single sample that both tests and replaces the draft.

Let p be the model's distribution (tempered, truncated, edited) at the position of a draft x. For the outcome
to be distributed as p, x must be kept with probability p(x) and otherwise replaced by a sample from p without
x. This is the rule of Leviathan et al. 2023 (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318) for a
one-token proposal.

Sampling y from p and keeping x if y = x does exactly that: y equals x with probability p(x), and otherwise y
is distributed as p without x. The sample uses the sequence's own random number for that position, as without
drafts. So the tokens equal those of a run without speculation: a seed gives the same tokens, and greedy
decoding is the case where p is a single token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from worker_engine.draft import Draft
from worker_engine.sampler import SampledToken


def accepted_tokens(drafts: Items[Draft], sampled: Items[SampledToken | None]) -> Items[SampledToken | None]:
    """Return the sequence's tokens of a step: the accepted drafts and one token more.

    Args:
        drafts: the draft tokens of one sequence, in order.
        sampled: [1 + drafts] samples after its last known token and after each draft; None for logits
            that are not finite.

    Returns:
        A prefix of `sampled`. A row counts only if all drafts before it were accepted, so non-finite logits
            after a rejected draft are ignored.
    """
    count = 0
    for draft, drawn in zip(drafts, sampled, strict=False):
        if drawn is None or drawn.token_id != draft.token_id:
            break
        count += 1
    return sampled[: count + 1]
