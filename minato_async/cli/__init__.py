"""The command line: ``python -m minato_async.cli`` and the ``minato-async`` script.

Nothing in the package outside this folder imports it.
"""

from minato_async.cli.app import main

__all__ = ["main"]
