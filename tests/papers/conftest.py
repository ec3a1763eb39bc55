"""Assets for the papers' tests: built where a fresh clone lacks them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.pipeline.assets import build, folder_of, verified
from scripts.pipeline.files import ROOT


@pytest.fixture(scope="session")
def asset() -> Callable[[str], Path]:
    """Gives the folder of an asset."""

    def find(name: str) -> Path:
        if not (folder_of(ROOT, name) / "manifest.json").exists():
            build(ROOT, name)
        return verified(ROOT, name)

    return find
