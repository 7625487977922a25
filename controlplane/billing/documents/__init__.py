"""Documents of billing as files: what they have in common, and their formats."""
