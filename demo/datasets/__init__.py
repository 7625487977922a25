"""What the demo adapters learn from: prompts, rewrites and schemes, all made by code."""
