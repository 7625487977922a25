"""Faults that the tests must find: each breaks one promise of the product by one change of its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of the source.

    Attributes:
        file: path below the repository's root.
        old: text that stands in the file exactly once; `new` replaces it.
        tests: pytest ids without the marker `slow`; every one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS: Final = (
    Fault(
        name="usage off by one",
        file="gateway/usage/metering.py",
        old="prompt, completion = usage.prompt_tokens, usage.completion_tokens",
        new="prompt, completion = usage.prompt_tokens, usage.completion_tokens + 1",
        tests=("tests/gateway/test_app.py::test_an_answer_and_its_usage",),
    ),
    Fault(
        name="key's secret not compared",
        file="gateway/routing/callers.py",
        old="right = hmac.compare_digest(digest, key.secret_sha256)",
        new="right = True",
        tests=(
            "tests/gateway/routing/test_names.py::test_a_wrong_key_is_refused",
            "tests/gateway/routing/test_callers.py::test_a_wrong_secret_learns_nothing_of_the_keys_scope",
        ),
    ),
    Fault(
        name="another tenant's adapter resolved",
        file="gateway/routing/names.py",
        old="return table.adapters.get(tenant, {}).get(name)",
        new="return next((names[name] for names in table.adapters.values() if name in names), None)",
        tests=(
            "tests/gateway/routing/test_names.py::test_what_the_tenant_lacks_is_not_found",
            "tests/gateway/routing/test_names.py::test_names_of_two_tenants_never_meet",
        ),
    ),
    Fault(
        name="prompt truncated",
        file="worker_engine/openai/prepare.py",
        old="tuple(encode(prompt, add_special_tokens=special))",
        new="tuple(encode(prompt, add_special_tokens=special))[-service.engine.max_model_len // 2 :]",
        tests=(
            "tests/worker_engine/test_server.py::test_other_refusals",
            "tests/worker_engine/test_prompt_lists.py::test_a_list_is_refused_whole_by_the_prompt_at_fault",
        ),
    ),
    Fault(
        name="revocation not published",
        file="controlplane/tenants/services/keys.py",
        old='route_remove(path=f"keys/{api_key.pk}")\n        _record_change(',
        new="_record_change(",
        tests=("tests/controlplane/routes/test_publisher.py::test_a_key_is_in_force_and_revoked",),
    ),
    Fault(
        name="adapter's shapes not checked",
        file="contracts/adapters/tensors.py",
        old="if shape != expected:",
        new="if False:",
        tests=(
            "tests/worker_engine/adapters/test_refusals.py::test_it_is_refused_by_name[shape]",
            "tests/worker_engine/test_server.py::test_a_bad_adapter_is_refused_while_others_are_served[shape]",
        ),
    ),
    Fault(
        name="upstream not cancelled",
        file="gateway/backends/upstream.py",
        old="            self._client.release(self._answer)\n",
        new="",
        tests=("tests/gateway/test_faults.py::test_a_hang_up_cancels_the_backend_and_bills_what_came",),
    ),
    Fault(
        name="attention sinks lost",
        file="worker_engine/layers/attention.py",
        old="window=self.window, sinks=self.sinks)",
        new="window=self.window)",
        tests=("tests/parity/worker_engine/test_gpt_oss.py::test_logits[gpt-oss]",),
    ),
    Fault(
        name="interleaved gate and up swapped",
        file="worker_engine/checkpoint/interleaved.py",
        old=".view(-1, 2).T.reshape(-1)",
        new=".view(-1, 2).flip(1).T.reshape(-1)",
        tests=(
            "tests/worker_engine/test_gpt_oss.py::test_a_layer_of_experts_equals_the_specification",
            "tests/parity/worker_engine/test_gpt_oss.py::test_logits[gpt-oss]",
        ),
    ),
    Fault(
        name="stacked experts' B read expert by expert",
        file="worker_engine/adapters/stacked_experts.py",
        old="b.view(b.shape[0], rank, experts).permute(2, 1, 0)",
        new="b.view(b.shape[0], experts, rank).permute(1, 2, 0)",
        tests=(
            "tests/worker_engine/test_sparse.py::test_columns_of_b_are_rank_major",
            "tests/parity/worker_engine/test_gpt_oss.py::test_as_the_formulas[gpt-oss-stacks]",
        ),
    ),
)
