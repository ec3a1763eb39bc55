"""A made-up project with results, as a finished run leaves them, for the tests of the page.

Two papers: one with every verdict, a stage over its budget, HTML in every string and very long
names; one whose stages are cut into a job per arm and seed.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from scripts.pipeline import params
from scripts.pipeline.dag import Dag
from scripts.pipeline.files import ROOT
from scripts.pipeline.freshness import Freshness

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&amp;{{ 7*7 }}"
LONG = "residual_quantization_with_a_very_long_name_that_nobody_would_ever_break_by_hand_" * 2
ASSET = "made-up-model"
RECIPE = "ab" * 32

README = f"""# A paper

Prose before.

```sh
## Limitations
```

## Limitations

- Everything is **scaled down**: 135M parameters stand in for 8B, `head_dim` 64 for 128.
- Attention weights are *assumed*, see [the paper](https://arxiv.org/abs/2607.01065).
- {HOSTILE}
- [click](javascript:alert(1)) ![beacon](https://example.org/beacon.png)

### What cannot be judged

| claim | why |
|---|---|
| LongBench average of {LONG} | needs an 8B model and a GPU |

## After

Text of another section.
"""

SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="640" height="300" viewBox="0 0 640 300">
<script>parent.document.title = "owned"</script>
<style>text { font: 14px sans-serif }</style>
<path d="M50 20V260H620" fill="none" stroke="#444"/>
<path d="M50 240 160 190 290 150 430 120 610 104" fill="none" stroke="#0072B2" stroke-width="3"/>
<path d="M50 250 160 214 290 186 430 163 610 150" fill="none" stroke="#D55E00" stroke-width="3"/>
<text x="500" y="92">gsrq</text><text x="500" y="176">k-means</text>
<text x="300" y="290">stages (100% of “all”)</text>
</svg>
"""


def check(verdict: str = "reproduced", **changes: Any) -> dict[str, Any]:
    """A check as the judge writes it."""
    return {
        "label": "gsrq against kmeans",
        "kind": "greater",
        "metric": "cosine",
        "unit": "cosine",
        "arm": "gsrq",
        "than": "kmeans",
        "where": {"dataset": "pydoc", "stages": 4},
        "effect": 0.0123,
        "effect_unit": "cosine",
        "low": 0.0091,
        "high": 0.0158,
        "level": 0.95,
        "margin": 0.0,
        "direction": "higher",
        "p": 0.00002,
        "p_holm": 0.0008,
        "test": "paired t",
        "n": 360,
        "seeds": 3,
        "interval": "95% BCa bootstrap over 36 units",
        "mde": None,
        "horizon": None,
        "verdict": verdict,
        "statement": "cosine of gsrq is above that of kmeans by 0.0123.",
    } | changes


def claim(id: str, verdict: str = "reproduced", **changes: Any) -> dict[str, Any]:
    """A claim as the judge writes it."""
    return {
        "id": id,
        "claim": "Gain-shape codebooks keep the direction of keys and values better than k-means.",
        "span": "improves directional fidelity",
        "reported": None,
        "verdict": verdict,
        "reason": None,
        "hash": "0f" * 32,
        "judged_at": ["laptop", "paper"],
        "checks": [check(verdict)],
    } | changes


def every_verdict() -> list[dict[str, Any]]:
    """Claims with every verdict and with every kind of gap."""
    missing = dict.fromkeys(
        ("effect", "low", "high", "level", "margin", "p", "p_holm", "n", "seeds", "interval"), None
    )
    return [
        claim(
            "C1",
            checks=[
                check(label=f"stages = {stages}", where={"stages": stages}, effect=effect)
                for stages, effect in ((2, 0.0123), (4, 0.0139), (8, 0.0098))
            ],
        ),
        claim(
            "C2",
            "partly",
            claim="At equal rate the quantized model stays closer to the full one, at every rate.",
            checks=[
                check(
                    "reproduced", label="0.5 bit", effect=0.061, low=0.02, high=0.11, margin=0.01
                ),
                check(
                    "partly", label="1 bit", effect=0.02, low=-0.015, high=0.055, margin=0.01,
                    mde=0.036,
                ),
                check(
                    "not reproduced", label="2 bits, smallest rate of all", effect=-0.041,
                    low=-0.072, high=-0.012, margin=0.01, mde=0.031, p=0.997, p_holm=1.0,
                ),
            ],
        ),
        claim(
            "C3",
            "not reproduced",
            claim="The gain over vector quantization at one bit is very large.",
            reported={
                "gsrq": 33.54,
                "vqllm": 11.34,
                "unit": "LongBench average",
                "where": "LLaMA-3-8B",
            },
            checks=[
                check(
                    "not reproduced", kind="at_most", effect=1.2e-7, low=-3e-7, high=None,
                    margin=1e-7, direction="at most", effect_unit="nat/token", mde=4.4e-7,
                )
            ],
        ),
        claim(
            "C4",
            "not testable here",
            reason="needs LLaMA-3-8B and LongBench, which only the scale paper has",
            judged_at=["paper"],
            checks=[],
        ),
        claim("C5", "wiring only", checks=[check("wiring only", **missing)]),
        claim(
            f"C6 {HOSTILE}",
            "partly",
            claim=f"{HOSTILE} {LONG}",
            span=HOSTILE,
            reason=HOSTILE,
            reported={HOSTILE: HOSTILE, "unit": HOSTILE, "where": HOSTILE},
            hash=HOSTILE,
            checks=[
                check(
                    "partly", label=f"{HOSTILE} {LONG}", kind=HOSTILE, metric=LONG, arm=LONG,
                    than=HOSTILE, where={HOSTILE: HOSTILE, "list": [1, 2]}, effect_unit=HOSTILE,
                    direction=HOSTILE, interval=HOSTILE, statement=f"{HOSTILE} {LONG}",
                    low=None, high=None,
                )
            ],
        ),
    ]  # fmt: skip


def write(root: Path, scale: str = "laptop") -> None:
    """Write the whole project under `root`."""
    settings = {"seeds": 2, "mem_mb": {"evaluate": 4000}, "runtime": 2}
    stages = {
        "prepare": None,
        "compress": {"arms": ["kmeans", "gsrq"]},
        "evaluate": {"arms": ["kmeans", "gsrq"]},
        "plot": None,
    }
    scales = {name: settings | {"assets": {"model": ASSET}} for name in params.SCALES}
    fanned = {name: settings | {"fan_out": ["arm", "seed"]} for name in params.SCALES}
    value = {
        "scale": scale,
        "papers": ["alpha", "omega"],
        "alpha": {"title": "Gain-Shape Residual Quantization", "source": "arXiv 2607.01065",
                  "stages": stages} | scales,
        "omega": {"title": f"{HOSTILE} {LONG}", "source": HOSTILE, "stages": stages} | fanned,
    }  # fmt: skip
    put(root, "params.yaml", yaml.safe_dump(value, sort_keys=False))
    schema = Path("workflow/schemas/params.schema.yaml")
    (root / schema).parent.mkdir(parents=True)
    shutil.copy(ROOT / schema, root / schema)
    columns = "asset,package,version,file,converter,sha256,licence,hub_id,revision,description"
    put(root, "data/sources.csv", f"{columns}\n{ASSET},made-up,1.0,model,copy,,MIT,,,A model\n")
    files = {"model.safetensors": {"size": 538_000_000, "sha256": "cd" * 32}}
    put_json(root, f"data/assets/{ASSET}/manifest.json", {"recipe": RECIPE, "files": files})
    for slug in value["papers"]:
        for name in ("claims.yaml", *(f"{stage}.py" for stage in stages)):
            put(root, f"scripts/papers/{slug}/{name}", "")
        put(root, f"scripts/papers/{slug}/README.md", README)
    project = params.load(root / "params.yaml")
    _results(root, Dag(project.papers["alpha"], scale), every_verdict(), figures=2)
    fanned_claims = [claim("C1"), claim("C2", "not reproduced"), claim("C3", "partly")]
    _results(root, Dag(project.papers["omega"], scale), fanned_claims, figures=0)
    _give_recipes(root, Freshness(project, scale))


def _results(root: Path, graph: Dag, claims: list[dict[str, Any]], figures: int) -> None:
    slug = graph.paper.slug
    for i, block in enumerate(graph.blocks.values()):
        put_json(root, block.manifest, {"recipe": RECIPE, "files": {}})
        over = block.stage == "evaluate" and slug == "alpha"
        cost = {
            "seconds": 185.2 if over else 3.25 + i,
            "cpu_seconds": 181.0 if over else 3.0 + i,
            "start_seconds": 1.5,
            "peak_mb": 5120.4 if over else 812.3,
            "threads": 1,
            "device": "cpu",
            "declared_mem_mb": graph.settings.machine("mem_mb", block.stage),
            "declared_minutes": graph.settings.machine("runtime", block.stage),
        }
        put_json(root, block.folder / "cost.json", cost)
    index = []
    for i in range(figures):
        caption = HOSTILE if i else "Cosine between a vector and its code (held-out text)."
        index.append(
            {
                "name": f"figure{i}",
                "file": f"figure{i}.svg",
                "caption": caption,
                "script": f"scripts/papers/{slug}/plot.py",
                "data": LONG if i else "evaluate: cosine",
            }
        )
        put(root, block.folder / f"figure{i}.svg", SVG)
    put_json(root, block.folder / "figures.json", index)
    verdicts = {
        "paper": slug,
        "title": graph.paper.title,
        "scale": graph.scale,
        "claims": claims,
    }
    put_json(root, f"results/{graph.scale}/{slug}/verdicts.json", verdicts)


def _give_recipes(root: Path, freshness: Freshness) -> None:
    """Give what the page is made from the recipes of this project."""
    for slug, dag in freshness.dags.items():
        figures = freshness.block(dag, dag.block("plot", "all"))
        put_json(root, figures.outputs[0], {"recipe": figures.recipe, "files": {}})
        verdicts = freshness.judge(slug)
        path, *others = verdicts.outputs
        value = json.loads((root / path).read_text(encoding="utf-8"))
        put_json(root, path, value | {"recipe": verdicts.recipe})
        for other in others:
            put(root, other, "")


def put(root: Path, path: str | Path, text: str) -> None:
    """Write a text file below `root`."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def put_json(root: Path, path: str | Path, value: Any) -> None:
    """Write a JSON file below `root`."""
    put(root, path, json.dumps(value))
