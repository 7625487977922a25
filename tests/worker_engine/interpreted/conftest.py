"""As in tests/kernels/interpreted, these tests run in a separate process, with Triton's interpreter."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.kernels.interpreted.quick_interpreter import install

    install()
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["test_*.py"]
