"""As tests/kernels/interpreted: these run in a process of their own, with Triton's interpreter."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
