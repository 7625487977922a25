"""Errors of the demo, drawn as a tree; each text says what happened and what to do.

DemoError
├── ModelSetupError     the demo model cannot be downloaded, converted or trusted
├── PortTakenError      a port that the demo needs has a listener
├── DiskFullError       too little free space under var/
├── AlreadyRunningError another supervisor holds this var/ folder
├── ProcessDiedError    a process of the demo ended by itself
├── ServerNotFoundError no Valkey or Redis server program is installed
└── SeedError           the product refused what the demo wanted to register
"""

from __future__ import annotations


class DemoError(RuntimeError):
    """Base of all: printed as one message without a traceback, exit status 1."""


class ModelSetupError(DemoError):
    """The demo model cannot be downloaded, converted or trusted."""


class PortTakenError(DemoError):
    """A port that the demo needs has a listener."""


class DiskFullError(DemoError):
    """Too little free space for what the demo is going to write."""


class AlreadyRunningError(DemoError):
    """Another supervisor holds this var/ folder."""


class ProcessDiedError(DemoError):
    """A process of the demo ended by itself, or did not become ready in time."""


class ServerNotFoundError(DemoError):
    """No Valkey or Redis server program is installed; the text says how to get one."""


class SeedError(DemoError):
    """The product refused what the demo wanted to register."""
