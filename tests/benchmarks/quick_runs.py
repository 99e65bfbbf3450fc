"""A program for `test_bench_command`: quick runs of targets.

python -m tests.benchmarks.quick_runs FOLDER NAME...
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from benchmarks.cli import main
from benchmarks.measure.machine import describe
from tests.forked import fork_each

#: Seconds that a run may take, on a machine that may be busy.
LIFETIME = 200.0

if __name__ == "__main__":
    describe()  # imports what the targets do
    gc.freeze()  # they collect the garbage before every run
    folder = Path(sys.argv[1])
    if name := fork_each(folder, sys.argv[2:], at_once=2, lifetime=LIFETIME):
        sys.exit(main([name, "--quick", "--json", str(folder / f"{name}.json")]))
