"""The corpus: architectures of transformers, adapters that PEFT makes on them, and what registration says.

Nothing is downloaded. Models are built from the default configuration of their class, on the meta device.
`python -m tests.parity.corpus` writes docs/models.md.
"""
