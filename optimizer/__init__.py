"""`python -m optimizer`: make a checkpoint smaller or faster, and measure what that is worth."""
