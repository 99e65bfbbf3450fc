"""Run the command line: ``python -m minato_async.cli demo``."""

import sys

from minato_async.cli.app import main

# Worker processes that are started afresh import this file again: only the first may run it.
if __name__ == "__main__":
    sys.exit(main())
