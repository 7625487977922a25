"""Ways to serve many fine-tuned models, as programs that run against the demo (docs/design-patterns.md)."""
