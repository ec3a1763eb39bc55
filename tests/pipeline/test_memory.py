"""A stage above its memory ends with a message, in a cluster's job and nowhere else."""

import os
import subprocess
import sys

import psutil
import pytest

from scripts.pipeline.memory import held_mb
from tests.workflow.project import ROOT

PROGRAM = """\
import mmap, sys, tempfile, time
from scripts.pipeline.memory import held_mb, limited

with limited({limit}, lambda: "alpha train: ours-s1", sys.stdout):
    {takes}
    time.sleep({seconds})
print("ended well")
"""
HELD = "held = bytearray(b'1') * (300 << 20)"
MAPPED = (
    "file = tempfile.TemporaryFile(); file.truncate(300 << 20); "
    "sum(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:: mmap.PAGESIZE])"
)


def run(limit: object, takes: str, limited: str, seconds: float) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(limit=limit, takes=takes, seconds=seconds)],
        cwd=ROOT,
        env={**os.environ, "MEMORY_IS_LIMITED": limited},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def around() -> int:
    """Megabytes of the processes above the program, this one and those that started it."""
    own = psutil.Process()
    return int(sum(held_mb(process.pid) for process in [own, *own.parents()]))


def test_above_the_limit():
    limit = around() + 200
    done = run(limit, HELD, "1", seconds=300)
    assert done.returncode == 1
    message = "error: alpha train: ours-s1: holds "
    assert message in done.stderr and message in done.stdout
    assert f"above its limit of {limit} MB. Raise mem_mb in params.yaml" in done.stderr
    assert "ended well" not in done.stdout


@pytest.mark.parametrize("case", ["below", "mapped", "not a cluster's job", "no limit"])
def test_nothing_else_is_ended(case):
    limit, takes, limited = {
        "below": (around() + 600, HELD, "1"),
        "mapped": (around() + 200, MAPPED, "1"),
        "not a cluster's job": (1, HELD, "0"),
        "no limit": (None, HELD, "1"),
    }[case]
    done = run(limit, takes, limited, seconds=1)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ended well"), done.stderr


def test_a_process_that_is_gone_holds_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert held_mb(gone.pid) == 0.0
    assert held_mb(os.getpid()) > 1
