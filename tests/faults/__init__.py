"""Faults put into a copy of the tree on purpose: the tests must notice each of them.

`python -m tests.faults` injects the faults that are written down; `python -m tests.faults mutate` samples
mutants of the modules that bill, admit and compute.
"""
