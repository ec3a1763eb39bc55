"""Interpreter tests in a process of their own; every output poisoned first; no GPU, no GPU tests.

Triton reads TRITON_INTERPRET once, when it is imported, and an interpreted kernel cannot be
compiled. So tests marked `interpreter` run in one child pytest per session, started when the first
of them is due; each then reports the outcome that its namesake had in the child. To debug one, run
the child by hand: `TRITON_INTERPRET=1 pytest tests/kernels -m interpreter`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
REPORT = "KERNEL_TESTS_REPORT"  # where the child writes its outcomes
OUTCOMES = pytest.StashKey[dict[str, tuple[str, str]]]()
HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interpreter: runs a kernel in Triton's interpreter, in a child process"
    )
    config.addinivalue_line("markers", "compiles: needs kernels that are not interpreted")
    if REPORT in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ[REPORT])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="no GPU here")
    interpreting = pytest.mark.skip(reason="interpreted kernels are not compiled")
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("compiles") and INTERPRETING:
            item.add_marker(interpreting)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if INTERPRETING or pyfuncitem.get_closest_marker("interpreter") is None:
        return None
    outcome, text = _outcomes(pyfuncitem.session).get(
        pyfuncitem.nodeid, ("failed", "the child process did not run this test")
    )
    if outcome == "skipped":
        pytest.skip(text)
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    return True


def _outcomes(session: pytest.Session) -> dict[str, tuple[str, str]]:
    """Run the session's interpreter tests in a child, once; outcome and text by node id."""
    if OUTCOMES not in session.stash:
        chosen = [item.nodeid for item in session.items if item.get_closest_marker("interpreter")]
        dropped = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
        env = {key: value for key, value in os.environ.items() if key not in dropped}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            child = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:xdist",
                    *chosen,
                ],
                cwd=session.config.rootpath,
                env=env | {"TRITON_INTERPRET": "1", REPORT: str(report)},
                capture_output=True,
                text=True,
            )
            if not report.exists():
                pytest.fail(f"the interpreter process died:\n{child.stdout}{child.stderr}", False)
            session.stash[OUTCOMES] = json.loads(report.read_text())
    return session.stash[OUTCOMES]


class _Recorder:
    """In the child: the worst phase of each test, written when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = (report.outcome, report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.outcomes))


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` gives NaN or the largest integer, so that an unwritten element shows."""
    torch.use_deterministic_algorithms(True)  # switches fill_uninitialized_memory on
    assert torch.empty(4).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
