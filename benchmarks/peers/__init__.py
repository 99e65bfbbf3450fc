"""Adapters: each module turns a :class:`~benchmarks.peers.base.Plan` into an iterable of batches
by one loader, with default options or options that a user would set."""
