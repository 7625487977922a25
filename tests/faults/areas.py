"""Areas of the product that mutants are drawn from, and the tests that must find each mutant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EXEMPT: Final = frozenset({"__init__.py", "admin.py", "apps.py"})


@dataclass(frozen=True, slots=True)
class Area:
    """Source files of one concern, by glob patterns from the repository's root."""

    name: str
    patterns: tuple[str, ...]

    def files(self, checkout: Path) -> list[str]:
        """Return the area's modules in a checkout, sorted; without migrations, admin pages and packages."""
        paths = {path.relative_to(checkout) for pattern in self.patterns for path in checkout.glob(pattern)}
        return sorted(
            str(path) for path in paths if path.name not in _EXEMPT and "migrations" not in path.parts
        )


AREAS: Final = (
    Area("gateway admission", ("gateway/admission/*.py",)),
    Area("usage log", ("gateway/usage/wal*.py",)),
    Area("gateway metering", ("gateway/usage/metering.py", "contracts/usage_event.py")),
    Area("control plane metering", ("controlplane/metering/**/*.py",)),
    Area("billing", ("controlplane/billing/**/*.py",)),
    Area(
        "scheduler",
        ("worker_engine/scheduler.py", "worker_engine/waiting_queue.py", "worker_engine/fairness.py"),
    ),
    Area("memory pool", ("worker_engine/memory_pool.py", "worker_engine/pending_pages.py")),
    Area(
        "adapter loading",
        (
            "worker_engine/adapters/loader.py",
            "worker_engine/adapters/build.py",
            "contracts/adapters/config.py",
            "contracts/adapters/tensors.py",
        ),
    ),
    Area(
        "CPU kernels",
        (
            "kernels/*/cpu.py",
            "kernels/attention/plan.py",
            *(f"kernels/lora/{name}.py" for name in ("layout", "pair", "products", "segments", "weights")),
        ),
    ),
)

_BILLING: Final = "tests/controlplane/billing"
_WORKER: Final = "tests/worker_engine"

TESTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "gateway/admission/",
        (
            *(
                f"tests/gateway/admission/test_{name}.py"
                for name in ("admit", "script", "places_ahead", "http")
            ),
            "tests/gateway/admission",
        ),
    ),
    (
        "gateway/usage/wal",
        (
            *(
                f"tests/gateway/usage/test_{name}.py"
                for name in ("wal", "wal_alone", "wal_faults", "metering")
            ),
            "tests/gateway/usage/test_shipper.py",
        ),
    ),
    (
        "contracts/usage_event",
        ("tests/contracts/test_route_table.py", "tests/gateway/usage/test_metering.py"),
    ),
    (
        "gateway/usage/metering",
        (
            *(
                f"tests/gateway/{name}.py"
                for name in ("usage/test_metering", "api/test_sse", "test_app", "test_faults")
            ),
            "tests/gateway/usage/test_usage_exact.py",
        ),
    ),
    (
        "controlplane/metering/cloud_events/",
        tuple(f"tests/controlplane/metering/test_cloud_{name}.py" for name in ("events", "dead_letters")),
    ),
    (
        "controlplane/metering/hosting/",
        ("tests/controlplane/metering/test_hosting.py", f"{_BILLING}/test_report.py"),
    ),
    ("controlplane/metering/adapter_use", ("tests/controlplane/console/test_adapter_traffic.py",)),
    (
        "controlplane/metering/requests",
        ("tests/controlplane/console/test_home.py", "tests/controlplane/metering"),
    ),
    ("controlplane/metering/", ("tests/controlplane/metering", "tests/controlplane/billing/reports")),
    ("controlplane/billing/usage_explorer", ("tests/controlplane/console/test_usage_explorer.py", _BILLING)),
    ("controlplane/billing/", (_BILLING, "tests/controlplane/billing/reports")),
    (
        "worker_engine/memory_pool",
        tuple(f"{_WORKER}/test_{name}.py" for name in ("memory_pool", "prefix_cache", "scheduler", "engine")),
    ),
    (
        "worker_engine/pending_pages",
        tuple(f"{_WORKER}/test_{name}.py" for name in ("pending_pages", "scheduler", "engine")),
    ),
    *(
        (
            prefix,
            (
                f"{_WORKER}/adapters/test_refusals.py",
                f"{_WORKER}/adapters",
                "tests/parity/worker_engine/test_adapter_forms.py",
            ),
        )
        for prefix in ("contracts/adapters/", "worker_engine/adapters/")
    ),
    (
        "worker_engine/",
        tuple(
            f"{_WORKER}/test_{name}.py"
            for name in ("scheduler", "fairness", "queue_limits", "shares", "engine", "overlap")
        ),
    ),
    ("kernels/lora/", ("tests/kernels/test_lora.py", "tests/kernels/test_lora_forms.py")),
    *(
        (f"kernels/{name}/", (f"tests/kernels/test_{name}.py",))
        for name in ("activation", "attention", "norm", "quantization", "rotary")
    ),
)
"""Prefix of a module's path -> its tests, the most specific prefix first, and the quickest tests first."""


def selected_tests(file: str, checkout: Path) -> tuple[str, ...]:
    """Return the paths of a module's tests that the checkout has. Raises LookupError when it has none."""
    for prefix, tests in TESTS:
        if file.startswith(prefix):
            if found := tuple(test for test in tests if (checkout / test).exists()):
                return found
            break
    raise LookupError(f"no tests of {file} in {checkout}: add them to {__name__}")
