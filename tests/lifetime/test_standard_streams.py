"""Programs whose standard streams are closed, as a daemon's are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.cases.support import CHECKOUT
from tests.processes.support import PATIENCE

PROGRAM = """
    import fcntl, os, stat, sys, traceback
    import torch
    from minato_async import MinatoLoader

    def report(*error):
        with open(sys.argv[1], "w") as file:
            traceback.print_exception(*error, file=file)

    sys.excepthook = report  # standard error is closed

    def standard():
        found = []
        for number in range(3):
            try:
                mode = os.fstat(number).st_mode
                read_only = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                name = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                found.append("closed")
            else:
                # Another thread reads a file, such as a counter under /proc, and closes it again:
                # what is written here meanwhile goes nowhere, as it should.
                in_passing = stat.S_ISREG(mode) and read_only
                found.append("closed" if in_passing else name)
        return found

    class Data:
        def __len__(self):
            return 8
        def __getitem__(self, index):
            print("a sample is loaded")  # to nowhere, if that is closed
            return torch.full((3000,), index), standard()

    def collate(samples):
        return samples

    if __name__ == "__main__":
        mine, found = standard(), []
        for executor in "thread", "process":
            loader = MinatoLoader(
                Data(), 2, num_workers=2, executor=executor, collate_fn=collate, in_order=True
            )
            for batch in loader:
                assert standard() == mine == ["closed"] * 3
                for sample, workers in batch:
                    assert set(workers) <= {"closed", "/dev/null"}, workers
                    found.append(int(sample[0]))
        assert standard() == mine
        with open(sys.argv[1], "w") as file:
            print(found, file=file)
"""


def test_nothing_of_ours_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    program, found = tmp_path / "program.py", tmp_path / "found"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, str(program), str(found)],
        cwd=CHECKOUT,
        env={"PYTHONPATH": str(CHECKOUT)},
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, found.read_text()
    assert found.read_text() == f"{[*range(8), *range(8)]}\n"
