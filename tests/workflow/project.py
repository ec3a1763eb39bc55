"""A throw-away copy of the project with made-up papers, to run the real programs on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE_UP = Path(__file__).parent / "project"
BIN = Path(sys.executable).parent


class Project:
    """The pipeline's own code with the papers of `tests/workflow/project`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in ("workflow", "profiles", "scripts/pipeline"):
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", ".partial*"),
            )
        for name in ("Snakefile", "scripts/__init__.py", "data/sources.csv", "kernels/__init__.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        shutil.copytree(MADE_UP / "papers", folder / "scripts" / "papers")
        shutil.copy(MADE_UP / "params.yaml", folder)
        for package in (folder / "scripts" / "papers").glob("**/"):
            (package / "__init__.py").touch()

    def command(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the project; never raises."""
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.root,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.command("snakemake", "--cores", "2", *arguments, **environment)

    def run(self, *arguments: str) -> str:
        """Run Snakemake, which must succeed; returns its output."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def planned(self, *arguments: str) -> set[str]:
        """The products of the jobs that a dry run would run, as 'alpha/train/all'."""
        plain = ("--workflow-profile", "none", "--nolock", "--max-checksum-file-size", "0")
        output = self.run("--dry-run", *plain, "--rerun-incomplete", *arguments)
        return {
            _short(line.split(":", 1)[1].split(",")[0].strip())
            for line in output.splitlines()
            if line.strip().startswith("output:")
        }

    def stage(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command("python", "-m", f"scripts.papers.{module}", *arguments)

    def products(self) -> dict[str, bytes]:
        """Every deterministic file of data/ and results/, by name."""
        skipped = ("cost.json", "mlflow.db", ".mlflow.db.lock", "report.html")
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for folder in ("data", "results")
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file() and path.name not in skipped and "mlartifacts" not in path.parts
        }

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert old in text, f"{old!r} not in {file}"
        path.write_text(text.replace(old, new))

    @staticmethod
    def environment(**extra: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **extra}


class Tracked(Project):
    """A made-up project under git and DVC, with a plain folder as the remote."""

    def __init__(self, folder: Path, remote: Path) -> None:
        super().__init__(folder)
        for name in ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.ok("dvc", "remote", "add", "--default", "folder", str(remote))
        self.commit("Begin")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True)

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def ok(self, *command: str) -> str:
        done = self.command(*command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Clone(Project):
    """A fresh clone of a project: no data, no results, no records of Snakemake's."""

    def __init__(self, origin: Project, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", origin.root, folder], check=True)
        self.root = folder


def _short(path: str) -> str:
    """'results/laptop/alpha/stages/train/all/manifest.json' -> 'alpha/train/all'."""
    parts = [
        part for part in Path(path).parts if part not in ("results", "stages", "manifest.json")
    ]
    if parts[0] == "data":
        return f"{parts[2]}/prepare"
    return "/".join(parts[1:])
