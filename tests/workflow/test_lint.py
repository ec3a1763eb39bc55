"""What holds for the whole repository: the direction of imports, sizes, folders."""

import ast
from pathlib import Path

import pytest

from scripts.pipeline import params
from tests.workflow.project import ROOT

CODE = sorted(
    path.relative_to(ROOT)
    for folder in ("scripts", "kernels", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
PAPERS = sorted(path.parent.name for path in ROOT.glob("scripts/papers/*/claims.yaml"))


def imports_of(path: Path) -> set[str]:
    """Full names of all that a file imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", [p for p in CODE if p.parts[0] != "tests"], ids=str)
def test_imports_run_one_way(path):
    """Papers import pipeline and kernels, which know no paper; no paper imports another.

    Freshness finds a stage's code by its import statements, so that all of them are absolute and
    none is hidden in a string.
    """
    names = imports_of(path)
    papers = {name.split(".")[2] for name in names if name.startswith("scripts.papers.")}
    own = {path.parts[2]} if path.parts[:2] == ("scripts", "papers") else set()
    assert papers <= own
    assert not {name for name in names if name.startswith("tests")}
    if path.parts[0] == "kernels":
        assert not {name for name in names if name.startswith("scripts")}
    assert "importlib.import_module" not in names and "__import__" not in (ROOT / path).read_text()


def test_pipeline_names_no_paper():
    for folder in ("scripts/pipeline", "workflow", "kernels"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".smk", ".yaml"):
                text = path.read_text()
                assert [paper for paper in PAPERS if f"papers/{paper}" in text] == [], path


@pytest.mark.parametrize("path", CODE, ids=str)
def test_no_file_is_long(path):
    assert len((ROOT / path).read_text().splitlines()) <= 600


def test_nothing_is_unpickled_and_no_remote_code_is_run():
    for path in CODE:
        if path.parts[0] != "tests":
            text = (ROOT / path).read_text()
            assert not {"pickle", "dill", "joblib"} & {n.split(".")[0] for n in imports_of(path)}
            assert "trust_remote_code=True" not in text and "allow_pickle=True" not in text, path
            assert "torch.load(" not in text, path


@pytest.mark.skipif(not (ROOT / "params.yaml").exists(), reason="params.yaml is not written yet")
def test_every_paper_has_its_folder_page_claims_and_tests():
    for slug, paper in params.load(ROOT / "params.yaml").papers.items():
        folder = ROOT / "scripts/papers" / slug
        for name in ("README.md", "claims.yaml", *(f"{stage}.py" for stage in paper.stages)):
            assert (folder / name).is_file(), folder / name
        assert "Limitations" in (folder / "README.md").read_text()
        assert list((ROOT / "tests/papers" / slug).glob("test_*.py")), slug
