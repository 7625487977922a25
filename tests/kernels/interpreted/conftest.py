"""Kernels run by Triton's interpreter on the CPU. `test_interpreted.py` runs these in a process of their own.

The interpreter is chosen where Triton is first imported, so these tests cannot share a process with others.
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
