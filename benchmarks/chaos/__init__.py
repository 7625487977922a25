"""Usage under fire: streams through real processes killed at random, then the bill held against them."""
