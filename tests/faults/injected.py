"""Faults that were injected by hand once, each with the tests of `make test` that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.faults.tree import Tree

LIMIT_S: Final = 600.0


class StaleFaultError(Exception):
    """A fault no longer fits the code: its old text is not found exactly once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` in `file` becomes `new`; every test of `tests` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def inject(self, text: str) -> str:
        """The file's text with the fault. Raises StaleFaultError."""
        if (found := text.count(self.old)) != 1:
            raise StaleFaultError(f"{self.name}: {self.file} has {self.old!r} {found} times, expected once")
        return text.replace(self.old, self.new)


FAULTS: Final = (
    Fault(
        "usage-off-by-one",
        "gateway/metering.py",
        "            completion_tokens=completion,\n",
        "            completion_tokens=completion + 1,\n",
        ("tests/gateway/test_app.py::test_an_answer_and_its_usage",),
    ),
    Fault(
        "secret-not-compared",
        "gateway/routing/callers.py",
        "    right = hmac.compare_digest(digest, key.secret_sha256)\n",
        "    right = True\n",
        ("tests/gateway/routing/test_names.py::test_a_wrong_key_is_refused",),
    ),
    Fault(
        "another-tenants-adapter",
        "gateway/routing/names.py",
        "    adapter = table.adapters.get(tenant, {}).get(name)\n",
        "    adapter = next((named[name] for named in table.adapters.values() if name in named), None)\n",
        (
            "tests/gateway/routing/test_names.py::test_what_the_tenant_lacks_is_not_found",
            "tests/gateway/routing/test_names.py::test_names_of_two_tenants_never_meet",
        ),
    ),
    Fault(
        "prompt-truncated",
        "worker_engine/openai/prepare.py",
        "    for index, ids in enumerate(tokens):\n        if not ids:\n",
        "    tokens = [ids[-256:] for ids in tokens]\n"
        "    for index, ids in enumerate(tokens):\n        if not ids:\n",
        ("tests/worker_engine/test_server.py::test_other_refusals",),
    ),
    Fault(
        "revocation-not-published",
        "controlplane/tenants/services/keys.py",
        '        route_remove(path=f"keys/{api_key.pk}")\n        _record_change(api_key, "api_key.revoke"',
        '        _record_change(api_key, "api_key.revoke"',
        ("tests/controlplane/routes/test_publisher.py::test_a_key_is_in_force_and_revoked",),
    ),
    Fault(
        "adapter-shape-not-checked",
        "worker_engine/adapters/tensors.py",
        "        if shape != expected:\n",
        "        if shape is None:\n",
        ("tests/worker_engine/adapters/test_refusals.py::test_it_is_refused_by_name[shape]",),
    ),
    Fault(
        "upstream-not-cancelled",
        "gateway/dispatch.py",
        "        if self._stream is not None:\n            self._stream.close()\n",
        "",
        ("tests/gateway/test_faults.py::test_a_hang_up_cancels_the_backend_and_bills_what_came",),
    ),
)


def survivors(tree: Tree, faults: tuple[Fault, ...]) -> list[str]:
    """Inject each fault and say what is wrong with the tests: empty if each notices its fault."""
    wrong = []
    for fault in faults:
        text = fault.inject((tree.root / fault.file).read_text())
        found = [f"{fault.name}: {told}" for told in _wrong(tree, fault, text)]
        print(
            f"{fault.name}: {'noticed' if not found else 'NOT NOTICED'} ({len(fault.tests)} tests)",
            flush=True,
        )
        wrong += found
    return wrong


def _wrong(tree: Tree, fault: Fault, text: str) -> list[str]:
    gate = ("-m", "not slow")
    without = tree.test([*gate, *fault.tests], seconds=LIMIT_S)
    if without.verdict != "passed":
        return [f"without the fault its tests do not pass: {without.verdict}\n{without.output[-2000:]}"]
    told = []
    with tree.changed(fault.file, text):
        for test in fault.tests:
            outcome = tree.test([*gate, test], seconds=LIMIT_S)
            if outcome.verdict != "failed":
                told.append(f"{test}: {outcome.verdict}\n{outcome.output[-2000:]}")
    return told
