"""The GPU report: what `benchmarks/gpu_report.py` runs. docs/gpu-report.md tells how to run and read it.

A part (correctness, kernels, quantization, engine, tune) is a list of tasks; each makes one row of the part's
JSON. Tasks run one after another in a process of their own, so that a kernel that hangs or breaks the device
costs its row and no other.
"""
