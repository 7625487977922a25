"""Training data of the demo adapters: prompts, rewrites and schemes, all made by code."""
