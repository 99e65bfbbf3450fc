"""The engine: what to load next, who loads it, and how batches form. Knows no executor by name."""
