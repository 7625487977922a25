"""Attention over paged keys and values: `reference.py` says what it means, `gpu.py` launches the kernels."""
