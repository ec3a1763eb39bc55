"""A stage that takes more memory than its cluster job was given ends with a message.

A cluster kills such a job, with a signal that no program can answer, or lets it take the memory
from its neighbours. So the stage looks at itself, more often than Slurm's accounting does, and
says which paper, stage and cell needed how much. What grows faster than it looks (five times a
second) is still the cluster's to kill; the first line of the stage's log then names the limit.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

LIMITED = "MEMORY_IS_LIMITED"
"""Environment variable that is 1 in a job of a cluster (workflow/rules/common.smk)."""

_SECONDS = 0.2
_HELD = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


@contextmanager
def limited(limit_mb: int | None, who: Callable[[], str], screen: TextIO) -> Iterator[None]:
    """End the process with status 1 and a message once its job holds more than its limit.

    Pages of mapped files do not count: the system takes them back when it needs them. The
    processes that started this one (Snakemake and its shell) do, as the cluster counts them too.

    Args:
        limit_mb: memory of the job; None, or outside a cluster job: nothing is watched.
        who: paper, stage and cell, to begin the message with.
        screen: takes the message beside the log.
    """
    if limit_mb is None or os.environ.get(LIMITED) != "1" or not Path("/proc/self/status").exists():
        yield
        return
    print(f"{who()}: this job may hold {limit_mb} MB", flush=True)
    around = sum(held_mb(pid) for pid in _starters())
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            held = held_mb(os.getpid()) + around
            if held > limit_mb:
                for stream in {sys.stderr, screen}:
                    print(
                        f"error: {who()}: holds {held:.0f} MB ({around:.0f} MB of them "
                        f"Snakemake's), above its limit of {limit_mb} MB. Raise mem_mb in "
                        "params.yaml",
                        file=stream,
                        flush=True,
                    )
                os._exit(1)  # nothing is half-written: the folder has not its name yet

    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def held_mb(pid: int) -> float:
    """Memory that a process holds and the system cannot take back; 0 when it has ended."""
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0.0
    return sum(int(amount) for amount in _HELD.findall(status)) / 1024


def _starters() -> list[int]:
    """The processes of the same job above this one: those below Slurm's own."""
    import psutil

    found = []
    for parent in psutil.Process().parents():
        if parent.name().startswith("slurmstepd"):
            break
        found.append(parent.pid)
    return found
