"""How every program of the pipeline ends: its output in a log, its errors as one message."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from scripts.pipeline.errors import PipelineError

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def run(action: Callable[[TextIO], None], label: str, log: Path | None = None) -> int:
    """Run `action`; returns the exit status.

    A `PipelineError` or a failing disk ends with one message on the screen and in the log, and
    status 1; a fault in the code ends with its traceback.

    Args:
        action: what to do; it is given the screen (standard error as it was before the log).
        label: what runs, to begin the message with.
        log: a file that takes everything printed, by C code too; None: no redirection.
    """
    try:
        with _logged(log) as screen:
            try:
                action(screen)
            except PipelineError as error:
                _say(f"error: {label}: {error}", screen)
                return 1
            except OSError as error:
                if error.errno not in _DISK_FAULTS:
                    raise
                _say(f"error: {label}: {_disk_message(error)}", screen)
                return 1
            except Exception:
                sys.stdout.flush()  # the log reads in the order in which things happened
                if screen is not sys.stderr:  # for the log; the screen gets it from Python
                    traceback.print_exc()
                raise
    except OSError as error:  # the log itself cannot be written
        if error.errno not in _DISK_FAULTS:
            raise
        print(f"error: {label}: {_disk_message(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def _say(message: str, screen: TextIO) -> None:
    sys.stdout.flush()
    for stream in {sys.stderr, screen}:
        print(message, file=stream, flush=True)


@contextmanager
def _logged(log: Path | None) -> Iterator[TextIO]:
    """Send everything printed to `log`; yields the screen as it was."""
    if log is None:
        yield sys.stderr
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    saved = os.dup(1), os.dup(2)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("w", encoding="utf-8") as file, os.fdopen(os.dup(2), "w") as screen:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield screen
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])


def _disk_message(error: OSError) -> str:
    place = error.filename or "the project's folder"
    advice = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the quota is used up: free some space",
        errno.EROFS: "the file system is read-only: make it writable or work in a copy",
    }.get(error.errno, "check the owner and the permissions of the folder")
    return f"{place}: {error.strerror}; {advice}, then run the same command again"
