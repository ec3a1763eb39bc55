"""Servers that tests start on this machine, on free loopback ports, and may kill."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import requests

GRACE_S = 180
"""How long a server may take to start or to show what it was sent."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(happened: Callable[[], object], what: str = "what should happen") -> None:
    until = time.monotonic() + GRACE_S
    while not happened():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.05)


class MlflowServer:
    """A tracking server with proxied artifacts; it keeps its port over restarts."""

    def __init__(self, folder: Path, store: str) -> None:
        self.uri = f"http://127.0.0.1:{(port := free_port())}"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(port), "--workers", "1", "--backend-store-uri", store),
            *("--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")),
        ]

    def start(self) -> None:
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.answers, "MLflow's server")

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.uri}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def kill(self) -> None:
        """kill -9 of the server and its workers."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Postgres:
    """A PostgreSQL server with an empty database `mlflow`."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        # The server refuses to run as root.
        self._user = _unprivileged_user() if os.geteuid() == 0 else None
        if self._user:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._port = free_port()
        self.uri = f"postgresql://tester@127.0.0.1:{self._port}/mlflow"
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "--username=tester")
        settings = f"port = {self._port}\nlisten_addresses = '127.0.0.1'\n"
        settings += f"unix_socket_directories = '{self.folder}'\n"
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(settings)
        self.start()
        self.query("CREATE DATABASE mlflow", database="postgres")

    @staticmethod
    def programs() -> Path | None:
        """The folder of PostgreSQL's programs; Debian keeps them off the PATH."""
        if found := shutil.which("initdb"):
            return Path(found).parent
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        return found[-1].parent if found else None

    def start(self) -> None:
        self._run("pg_ctl", "start", "--wait", "--log", str(self.folder / "log"))

    def crash(self) -> None:
        """End at once, as after kill -9: the next start recovers from the log."""
        self._run("pg_ctl", "stop", "--mode=immediate")

    def remove(self) -> None:
        self.crash()
        shutil.rmtree(self.folder)

    def query(self, sql: str, database: str = "mlflow") -> list[tuple]:
        import psycopg2

        connection = psycopg2.connect(self.uri.removesuffix("mlflow") + database)
        try:
            connection.autocommit = True  # CREATE DATABASE allows no transaction
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, "--pgdata", self.folder / "data", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def _unprivileged_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
