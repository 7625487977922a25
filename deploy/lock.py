"""Write requirements.txt, the lock of every third-party package but torch: `lock.py EXTRA,...`.

The lock pins each package that the extras of pyproject.toml need at its installed version, with the SHA-256
of every file that pip's configured indexes offer. Exits with a message if one of them is missing.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

# pip's own code, so that index, mirror, proxy and credentials come from the user's configuration of pip.
from pip._internal.commands.download import DownloadCommand
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

_HEADER: Final = """\
# Written by `make lock`; do not edit. Above each package: the extras that need it. To install:
#     pip install --no-deps --require-hashes --only-binary :all: -r requirements.txt
"""
# The wheel of torch, and with it the CUDA packages, depends on the accelerator: see docs/adr/0074.
_UNLOCKED: Final = ("torch", "nvidia-", "cuda-")
_ENVIRONMENTS: Final = [
    {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_system": system,
        "sys_platform": system.lower(),
        "platform_machine": machine,
    }
    for python, (system, machine) in product(
        ("3.11", "3.12", "3.13"), (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
    )
]


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the packages that the requirements need on any supported Python and system."""
    waiting = [Requirement(line) for line in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for package, known in seen if package == name}:
            seen.add((name, extra))
            needed = map(Requirement, _distribution_requires(name))
            waiting += [each for each in needed if _applies(each, extra)]
    return {name for name, _ in seen if not name.startswith(_UNLOCKED)}


def _distribution_requires(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        if name.startswith(_UNLOCKED):
            return []
        sys.exit(f"{name} is not installed: `.venv/bin/pip install {name}`, then `make lock`")


def _applies(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate(each | {"extra": extra}) for each in _ENVIRONMENTS)


def offered_files(names: Iterable[str]) -> Iterator[tuple[str, Link]]:
    """Yield each package's name with every file of every version in the indexes that pip is set up to ask."""
    logging.disable(logging.WARNING)  # pip warns of each package that an index on disk lacks
    command = DownloadCommand("download", "")
    options, _ = command.parse_args([])
    with command.main_context():
        collector = LinkCollector.create(command.get_default_session(options), options)
        for name in names:
            for url in collector.search_scope.get_index_urls_locations(name):
                page = collector.fetch_response(Link(url))
                yield from ((name, link) for link in parse_links(page)) if page else ()


def hashes(versions: dict[str, Version]) -> dict[str, dict[str, str]]:
    """Map each package to the file names of its version, and those to their SHA-256."""
    found: dict[str, dict[str, str]] = {name: {} for name in versions}
    for name, link in offered_files(versions):
        if link.hash_name == "sha256" and link.hash and _version(link.filename) == versions[name]:
            found[name][link.filename] = link.hash
    if missing := [name for name, files in found.items() if not files]:
        sys.exit(f"no index of pip offers {missing[0]} {versions[missing[0]]} with a SHA-256")
    return found


def _version(filename: str) -> Version | None:
    try:
        wheel = filename.endswith(".whl")
        return parse_wheel_filename(filename)[1] if wheel else parse_sdist_filename(filename)[1]
    except ValueError:  # file names from before the naming standards
        return None


def main(extras: list[str]) -> None:
    """Write requirements.txt in the working directory."""
    tree = tomllib.loads(Path("pyproject.toml").read_text())
    shared, optional = tree["project"]["dependencies"], tree["project"]["optional-dependencies"]
    needs = {extra: closure(shared + optional[extra]) for extra in extras}
    needs["build"] = closure(tree["build-system"]["requires"])
    versions = {name: Version(distribution(name).version) for name in sorted(set().union(*needs.values()))}
    lines = [_HEADER]
    for name, files in hashes(versions).items():
        lines.append(f"# for {', '.join(sorted(extra for extra, names in needs.items() if name in names))}\n")
        marker = "; platform_system == 'Linux'" if all("linux" in each for each in files) else ""
        pins = [f"--hash=sha256:{digest}" for digest in sorted(set(files.values()))]
        lines.append(" \\\n    ".join([f"{name}=={versions[name]}{marker}", *pins]) + "\n")
    Path("requirements.txt").write_text("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1].split(","))
