"""Run by a test: resumes from each of the states in a file, in this process, and writes what came.

python -m tests.resuming.resume_all STATES RESULTS WAY
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.resuming import loaders


def main() -> None:
    states, results, way = sys.argv[1:]
    found = {
        kind: [loaders.resumed(kind, way, saved) for saved in all_saved]
        for kind, all_saved in pickle.loads(Path(states).read_bytes()).items()
    }
    Path(results).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
