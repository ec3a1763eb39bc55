"""A Slurm of one node on free ports, out of Debian's own programs, in a folder of its own.

Started without systemd and without cgroups, as root: munged, slurmctld and slurmd in the
foreground. Memory is watched by Slurm's own accounting, which ends a step above its limit.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATIENCE_S = 600
"""Never reached: machines that are busy are slow."""
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=30
JobAcctGatherParams=OverMemoryKill
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=2
MinJobAge=3600
ReturnToService=2
SlurmdTimeout=300
BatchStartTimeout=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:2
PartitionName=main Nodes={host} Default=YES MaxTime=60
"""


def missing() -> str | None:
    """Why Slurm cannot be started here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root"
    path = f"{os.environ['PATH']}:{_SBIN}"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return (
        f"not installed: {', '.join(absent)} (apt-get install slurm-wlm munge)" if absent else None
    )


class Slurm:
    """The running cluster. `environment` is what its clients need."""

    def __init__(self, folder: Path, cpus: int = 4, memory: int = 32000) -> None:
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: list[subprocess.Popen[bytes]] = []
        """What a test started and may have left, to be ended with the cluster."""
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ctld_port, slurmd_port = _free_ports(2)
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                folder=folder,
                host=self.host,
                ctld_port=ctld_port,
                slurmd_port=slurmd_port,
                cpus=cpus,
                memory=memory,
            )
        )
        # The plugin starts a step without SLURM_CONF: it counts on /etc/slurm.
        srun = folder / "bin" / "srun"
        srun.parent.mkdir()
        srun.write_text(
            f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n'
        )
        srun.chmod(0o755)
        for name in ("gpu0", "gpu1"):
            (folder / name).touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)

    def start(self) -> None:
        """Start all daemons and wait until the node takes jobs."""
        files = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        self._start("munged", "--foreground", "--force", *options)
        wait_until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D")
        self.start_slurmd()

    def start_slurmd(self) -> None:
        self._start("slurmd", "-D", "-N", self.host)
        wait_until(lambda: self.client("sinfo", "-h", "-o", "%T") in ("idle", "mixed"), "slurmd")

    def kill_slurmd(self) -> None:
        """The node's daemon alone; its jobs go on."""
        daemon = self._daemons.pop("slurmd")
        daemon.kill()
        daemon.wait()

    def crash(self) -> None:
        """Kill the node with all its jobs, as when its power fails; then start it again."""
        self.kill_slurmd()
        jobs = self._job_processes()
        for process in (*_reporters(jobs), *jobs):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.start_slurmd()
        # Slurm misses the jobs when the node reports, which it else does every few minutes.
        wait_until(lambda: self.client("scontrol", "reconfigure") == "" and self._lost(), "lost")

    def _lost(self) -> bool:
        time.sleep(2)
        return any(job["state"] == "NODE_FAIL" for job in self.jobs())

    def _job_processes(self) -> list[psutil.Process]:
        """Everything that runs in a job; slurmd, once killed, is no parent of it."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                ours = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
                found += [process] if ours and "SLURM_JOB_ID" in environment else []
        return found

    def stop(self) -> None:
        """End all daemons and what is left of commands and jobs."""
        for command in self.commands:
            if command.poll() is None:
                command.kill()
                command.wait()
        for name in reversed(self._daemons):
            self._daemons[name].send_signal(signal.SIGTERM)
            try:
                self._daemons[name].wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._daemons[name].kill()
                self._daemons[name].wait()
        self._daemons.clear()
        jobs = self._job_processes()
        for process in (*_reporters(jobs), *jobs):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def look_at_memory_every(self, seconds: int) -> None:
        """How often Slurm looks at the memory of jobs from now on (else every 30 s)."""
        path = self.folder / "slurm.conf"
        text = path.read_text()
        path.write_text(re.sub(r"(JobAcctGatherFrequency=)\d+", rf"\g<1>{seconds}", text))
        self.client("scontrol", "reconfigure")
        wait_until(lambda: self.client("sinfo", "-h", "-o", "%T") == "idle", "reconfigure")

    def client(self, *command: str) -> str:
        """What a client program prints; empty when it fails."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def jobs(self) -> list[dict[str, str]]:
        """All jobs by age, ended ones too: id, state, cpus, memory, time limit, comment."""
        keys = ("id", "state", "cpus", "memory", "minutes", "comment")
        asked = ("--sort=i", "--states=all", "--noheader", "--format=%A|%T|%C|%m|%l|%k")
        lines = self.client("squeue", *asked)
        return [dict(zip(keys, line.split("|"), strict=True)) for line in lines.splitlines()]

    def _start(self, program: str, *arguments: str) -> None:
        path = f"{os.environ['PATH']}:{_SBIN}"
        with (self.folder / f"{program}.out").open("ab") as output:
            self._daemons[program] = subprocess.Popen(
                [shutil.which(program, path=path), *arguments],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def _reporters(jobs: list[psutil.Process]) -> set[psutil.Process]:
    """The processes that start those of the jobs and tell Slurm how they end."""
    found = set()
    for process in jobs:
        with suppress(psutil.NoSuchProcess):
            parent = process.parent()
            found |= {parent} if parent and parent.name().startswith("slurmstepd") else set()
    return found


def wait_until(found: Callable[[], Any], what: str, patience: float = PATIENCE_S) -> Any:
    """What `found` returns, once it is true."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {patience} s")


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
