"""A program for `test_demo_training`: trainings of the demo, one after the other.

It reads a JSON list of tasks from its standard input and writes a list of pairs to its standard
output: what each training saw, and the seconds that it took. All in one process, which spares them
the import of torch.
"""

from __future__ import annotations

import json
import sys
import time

from minato_async.cli.demo.training import measure

if __name__ == "__main__":
    done = []
    for fields in json.load(sys.stdin):
        begin = time.perf_counter()
        seen = measure(**fields)
        done.append((seen, time.perf_counter() - begin))
    json.dump(done, sys.stdout)
