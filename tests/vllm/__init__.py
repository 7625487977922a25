"""Tests against real vLLM servers, and the tiny checkpoints that they serve."""
