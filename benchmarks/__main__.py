"""Entry point of ``python -m benchmarks``."""

import compileall
import sys
from pathlib import Path

# What is measured is loaded from bytecode files, as an installed package is. If free-threaded
# CPython 3.13 compiles a module while it imports it, the constants of its code are not immortal:
# threads that use them contend for their reference counts, and pure Python is no faster on two
# cores than on one.
for package in ("minato_async", "benchmarks"):
    compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)

from benchmarks.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
