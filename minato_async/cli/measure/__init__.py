"""How a loader is measured: the consumer's loop, rounds in turns, fresh processes, their memory.

For the demo and for ``benchmarks``, which is not installed with the package: so it is here that
both find it.
"""
