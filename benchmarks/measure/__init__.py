"""How runs are measured, beside :mod:`minato_async.cli.measure`: rounds, checks, the machine."""
