"""Threads: the executor for interpreters without the GIL."""
