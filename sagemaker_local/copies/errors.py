"""Reasons why a container does not serve.

CopyError                the text becomes a FailureReason
├── ArtifactError        its artifact cannot be fetched
├── StartError           it ended, or did not answer /ping in time
└── AdapterRefused       it refused an adapter
"""

from __future__ import annotations


class CopyError(Exception):
    """Base of the tree."""


class ArtifactError(CopyError):
    pass


class StartError(CopyError):
    pass


class AdapterRefused(CopyError):
    pass
