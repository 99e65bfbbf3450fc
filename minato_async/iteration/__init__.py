"""Iteration: what `for` and `async for` go through, and what is asked of samplers."""
