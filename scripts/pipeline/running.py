"""Running a stage function as a program: arguments, lock, threads, cost, the atomic end."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from scripts.pipeline import files, memory, params, program
from scripts.pipeline.dag import Block, Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.freshness import Freshness, carried_recipe, write_manifest
from scripts.pipeline.schema import listed, nearest
from scripts.pipeline.stage import Job, scratch_folder


def run_program(
    stage: Callable[[Job], None], module: str, argv: list[str], root: Path = files.ROOT
) -> int:
    """Run a stage with command-line arguments; returns the exit status.

    Args:
        stage: the stage function.
        module: its module, `scripts.papers.<paper>.<stage>`.
        argv: the arguments (see `--help`).
        root: the project folder.
    """
    paper, name = module.split(".")[-2:]
    args = _parser(paper, name).parse_args(argv)
    return program.run(
        lambda screen: run_stage(stage, paper, name, root, args, screen),
        f"{paper} {name}",
        args.log,
    )


def run_stage(
    stage: Callable[[Job], None],
    paper: str,
    name: str,
    root: Path,
    args: argparse.Namespace,
    screen: TextIO,
) -> None:
    """Run one block (or a hand-picked part of one) into its folder, unless it is there already."""
    settings = params.load(root / "params.yaml")
    scale = params.check_scale(args.scale or settings.scale, "--scale")
    dag = Dag(settings.paper(paper), scale)
    block, outdir, by_hand = _chosen(dag, name, args)
    outdir = root / outdir
    threads = args.threads or int(dag.settings.machine("threads", name))
    freshness = Freshness(settings, scale)
    recipe = "by hand" if by_hand else freshness.block(dag, block).recipe
    with files.only_one(root / "scratch" / "locks" / f"{scale}-{paper}-{name}-{block.name}.lock"):
        done = carried_recipe(outdir / "manifest.json") == recipe and not by_hand
        if done and not args.force:
            os.utime(outdir / "manifest.json")
            print(f"{paper} {name}: {outdir.relative_to(root)} is up to date (--force runs it)")
            return
        if not by_hand:
            freshness.require_inputs(freshness.block(dag, block))
        with files.whole_or_nothing(outdir) as folder:
            job = Job(dag, block, root, folder, _device(dag, name), threads, by_hand, screen=screen)
            with memory.limited(args.mem_mb, lambda: _who(job), screen):
                cost = _measured(stage, job, settings.live)
            job.finish()
            write_manifest(folder, recipe)
            files.write_json(folder / "cost.json", cost)


def _parser(paper: str, stage: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.papers.{paper}.{stage}",
        description=f"Stage {stage} of {paper}: runs one block of cells into its folder.",
    )
    parser.add_argument("--scale", help="smoke, laptop or paper; default: params.yaml")
    parser.add_argument("--block", help="the block to run; default: the only one")
    parser.add_argument("--arm", help="run this arm only, into scratch/")
    parser.add_argument("--seed", type=int, help="run this seed only, into scratch/")
    parser.add_argument("--threads", type=int, help="default: params.yaml")
    parser.add_argument(
        "--mem-mb", type=int, help="memory of the job; in a cluster job the stage may hold no more"
    )
    parser.add_argument("--log", type=Path, help="write output here; errors also to the screen")
    parser.add_argument("--force", action="store_true", help="run even when up to date")
    return parser


def _chosen(dag: Dag, stage: str, args: argparse.Namespace) -> tuple[Block, Path, bool]:
    """The block to run, its folder, and whether it was cut by hand out of the DAG's blocks."""
    if args.arm is None and args.seed is None:
        names = [name for of, name in dag.blocks if of == stage]
        if not args.block and len(names) != 1:
            raise PipelineError(f"--block is needed; the blocks of {stage} are: {listed(names)}")
        block = dag.block(stage, args.block or names[0])
        return block, block.folder, False
    cells = dag.cells(stage)
    for option, value, allowed in (
        ("--arm", args.arm, sorted({cell.arm for cell in cells})),
        ("--seed", args.seed, sorted({cell.seed for cell in cells})),
    ):
        if value is not None and value not in allowed:
            raise PipelineError(
                f"{option}: found {value!r}{nearest(value, allowed)}; allowed: {listed(allowed)}"
            )
    chosen = tuple(
        cell
        for cell in cells
        if cell.arm == (args.arm or cell.arm) and args.seed in (None, cell.seed)
    )
    if not chosen:
        raise PipelineError(
            f"--arm {args.arm} --seed {args.seed}: no such cell (an arm in single_seed has seed 0 "
            f"only); allowed: {listed(cell.name for cell in cells)}"
        )
    paper, scale = dag.paper.slug, dag.scale
    name = chosen[0].name if len(chosen) == 1 else args.arm or f"s{args.seed}"
    block = Block(paper, scale, stage, name, chosen)
    return block, scratch_folder(paper, scale, stage, name), True


def _who(job: Job) -> str:
    """Paper, stage and cell, or the block before its first cell."""
    cell = job.cell.name if job.cell else job.block.name
    return f"{job.paper} {job.stage}: {cell}"


def _device(dag: Dag, stage: str) -> str:
    if not dag.settings.machine("gpu", stage):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    raise PipelineError(
        f"params.yaml: {dag.paper.slug}.{dag.scale}.gpu asks for a GPU for {stage} and none is "
        "visible; run on a machine with one, or set gpu: 0 (slow)"
    )


def _measured(stage: Callable[[Job], None], job: Job, live: bool) -> dict[str, Any]:
    """Run the stage with its threads; returns what it cost."""
    import resource

    from threadpoolctl import threadpool_limits

    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(job.threads)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    if live:
        from scripts.pipeline import tracking

        job.live = tracking.live(job.paper, job.scale, job.stage)
    start, cpu = time.perf_counter(), time.process_time()
    try:
        with threadpool_limits(job.threads):
            stage(job)
    finally:
        if job.live is not None:
            job.live.close()
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "start_seconds": round(cpu, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "threads": job.threads,
        "device": job.device,
        "declared_mem_mb": job.dag.settings.machine("mem_mb", job.stage),
        "declared_minutes": job.dag.settings.machine("runtime", job.stage),
    }
