"""Cancellation: how a running step learns that its loader is closing."""


class SampleCancelled(BaseException):
    """Raised inside a step whose result nobody waits for any more.

    A `BaseException`, so that `except Exception` in user code does not swallow it.
    """
