"""As in tests/kernels/interpreted, these tests run in a separate process, with Triton's interpreter."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
