"""The GPU report, run by `benchmarks/gpu_report.py`. docs/gpu-report.md explains how to run and read it.

A part (correctness, kernels, quantization, engine, tune) is a list of tasks; each makes one row of the part's
JSON. Tasks run one after another in a separate process, so that a kernel that hangs or breaks the device only
loses its own row.
"""
