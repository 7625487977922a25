"""Every language architecture of the installed transformers with adapters made by PEFT, as headers alone.

`python -m benchmarks.corpus` registers all of them by the code that a tenant's registration runs, and prints
the table of docs/models.md. Nothing is downloaded and no weight exists: models and adapters are built on
PyTorch's meta device at the sizes of their configuration classes.
"""
