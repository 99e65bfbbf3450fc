"""Shards: how iterable datasets are read."""
