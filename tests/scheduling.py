"""Pytest plugin that runs tests which share fixtures in one of pytest-xdist's processes."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUPS: Final = (
    ("walk", "tests/walk/*"),
    ("ui", "tests/ui/*"),
    ("browser", "tests/controlplane/console/test_*browser*"),
    ("interpreter", "tests/test_interpreted.py"),
    ("clients", "tests/clients/*"),
    ("sagemaker", "tests/gateway/backends/test_sagemaker*"),
)
"""Name and files of each group that shares an expensive fixture. Any other file is a group of its own."""
LONG_GROUPS: Final = ("walk", "ui", "browser", "interpreter")
"""Groups that take a minute or more. They run first, so that no process ends long after the others."""


def group_of(node: str) -> str:
    """Return the group of a test by its node id."""
    file = node.partition("::")[0]
    return next((name for name, pattern in GROUPS if fnmatch(file, pattern)), file)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands a whole group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Schedule groups without `--dist loadgroup`, which has no effect with pytest 9.2."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest groups first; the order within a group stays."""
    groups = {item: group_of(item.nodeid) for item in items}
    # False sorts before True.
    items.sort(key=lambda item: [groups[item] != name for name in LONG_GROUPS])
