"""Claims files: what is read, what is refused and with which words."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scripts.pipeline import claims as module
from scripts.pipeline import schema
from scripts.pipeline.claims import load
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT
from tests.pipeline.claim_tables import KINDS, claim, greater

GSRQ = """
- id: C1
  claim: Euclidean averaging shrinks centroids in high dimension.
  span: "the exact phrase"
  judged_at: [laptop, paper]
  partly_needs: 2
  checks:
    - {kind: exact, metric: identity_error, arm: kmeans, value: 0, tolerance: 1.0e-6, part: a}
    - {kind: trend, metric: rho, arm: kmeans, factor: dim, direction: falling,
       pair: [seed], part: b}
    - {kind: rate, metric: rho, arm: kmeans, factor: dim, within: [-0.6, -0.25], pair: [seed],
       where: {dim: [32, 64, 128]}, part: b}
    - {kind: share, metric: rho, arm: kmeans, than: kmeans, better: lower, at_least: 0.9,
       by: estimate, where: {stages: 2}, than_where: {stages: 1}, pair: [seed, layer], part: c}
- id: C2
  claim: Directional fidelity improves.
  judged_at: [laptop]
  checks:
    - {kind: greater, metric: cosine, arm: gskm, than: kmeans, each: {stages: [2, 4, 8]},
       pair: [seed, layer, tensor], cluster: [layer, tensor], required: partly}
    - {kind: share, metric: cosine, arm: gskm, than: kmeans, each: {stages: [2, 4, 8]},
       pair: [seed, layer, tensor], at_least: 0.8, by: estimate}
- id: C3
  claim: The l2 distortion is matched and in some regimes improved.
  reported: {where: LLaMA-3-8B, bits: 1}
  judged_at: [laptop]
  not_testable: {paper: no checkpoint}
  checks:
    - {kind: ratio, metric: l2, arm: gskm, than: kmeans, at_most: 1.01, required: reproduced,
       pair: [seed, layer]}
    - {kind: ratio, metric: l2, arm: gskm, than: kmeans, at_most: 1, pair: [seed, layer],
       each: {tensor: [k, v], stages: [2, 4, 8]}, any_of: [tensor, stages]}
- id: C5
  claim: Strong baselines are beaten across bit rates.
  judged_at: [laptop]
  checks:
    - {kind: greater, metric: kl, arm: gsrq, than: [vqllm, kivi], better: lower,
       pair: [seed, segment], cluster: [segment], each: {bits: [0.5, 1, 2]}}
    - {kind: greater, metric: kl, arm: gsrq, than: [vqllm, kivi], better: lower,
       pair: [seed, segment], cluster: [segment], each: {bits: [0.5, 1, 2]},
       by: not_contradicted, required: reproduced}
    - {kind: greater, metric: kl, arm: gsrq, than: [vqllm, kivi], better: lower,
       pair: [seed, segment], cluster: [segment], each: {bits: [0.5, 1, 2]},
       by: estimate, any_of: [bits], required: reproduced}
- id: C6
  claim: At 1 bit the gain over VQLLM is very large.
  judged_at: [laptop]
  checks:
    - {kind: greater, metric: retained, arm: gsrq, than: vqllm, where: {bits: 1}, margin: 0.2,
       pair: [seed, prompt], cluster: [prompt], by: estimate}
    - {kind: greater, metric: retained, arm: gsrq, than: vqllm, where: {bits: 1},
       pair: [seed, prompt], cluster: [prompt], required: reproduced}
- id: C8
  claim: Shape and weights both contribute.
  judged_at: [laptop]
  check: {kind: greater, metric: kl, arm: gs + gs_weighted, than: [km + km_weighted], better: lower,
          pair: [seed, segment], cluster: [segment]}
"""


def written(folder: Path, content: Any) -> Path:
    path = folder / "claims.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_claims_are_read_with_their_checks(tmp_path: Path) -> None:
    c1, _, c3, _, _, c8 = load(written(tmp_path, GSRQ), "gsrq")
    assert (c1.id, c1.span, c1.partly_needs, c1.judged_at) == (
        "C1",
        "the exact phrase",
        2,
        ("laptop", "paper"),
    )
    assert [check.part for check in c1.checks] == ["a", "b", "b", "c"]
    assert [check.index for check in c1.checks] == [1, 2, 3, 4]
    assert c3.not_testable == {"paper": "no checkpoint"}
    assert c3.reported == {"where": "LLaMA-3-8B", "bits": 1}
    assert c8.checks[0].arms == ("gs", "gs_weighted")
    assert c8.checks[0].than == ("km + km_weighted",)
    assert c8.checks[0].part == "check 1"


def test_each_and_than_expand_to_atoms(tmp_path: Path) -> None:
    check = greater(each={"bits": [1, 0.5], "stages": [2]}, than=["a", "b"], where={"layer": 3})
    (only,) = load(written(tmp_path, [claim(check=check)]), "made_up")
    atoms = list(only.checks[0].atoms())
    assert [(atom.where["bits"], atom.than) for atom in atoms] == [
        (1, ("a",)),
        (1, ("b",)),
        (0.5, ("a",)),
        (0.5, ("b",)),
    ]
    assert all(atom.where["layer"] == 3 and atom.where["stages"] == 2 for atom in atoms)
    assert atoms[3].label == "greater score, bits=0.5, stages=2, than b"
    assert atoms[3].setting == {"bits": 0.5, "stages": 2, "than": "b"}


def test_hash_follows_content_not_style(tmp_path: Path) -> None:
    content = [claim(check=greater())]
    hashes = []
    for text in (
        yaml.safe_dump(content),
        yaml.safe_dump(content, default_flow_style=True, sort_keys=False),
        "# a comment\n" + yaml.safe_dump(content),
        yaml.safe_dump([claim(check=greater(margin=0.1))]),
        yaml.safe_dump([claim(check=greater(), claim="Ours is better than theirs!")]),
    ):
        hashes.append(load(written(tmp_path, text), "made_up")[0].hash)
    assert len(set(hashes[:3])) == 1
    assert len(set(hashes)) == 3
    assert re.fullmatch("[0-9a-f]{64}", hashes[0])


WRONG: dict[str, tuple[Any, str]] = {
    "kind misspelt": (
        greater(kind="greatr"),
        "kind: found 'greatr', allowed: greater, not_worse, .*did you mean 'greater'",
    ),
    "unknown key": (
        greater(margn=0.1),
        "margn: unknown key.*did you mean 'margin'.*allowed: .*pair",
    ),
    "key of another kind": (greater(tolerance=0.1), "tolerance: unknown key"),
    "missing key": (
        {"kind": "greater", "metric": "m", "arm": "a", "pair": ["seed"]},
        "than: missing",
    ),
    "no kind": ({"metric": "m", "arm": "a"}, "kind: missing"),
    "no margin for not_worse": (greater(kind="not_worse"), "margin: missing"),
    "negative loss": (
        greater(kind="not_worse", margin=-1),
        "margin: found -1, allowed: at least 0",
    ),
    "number as text": (
        greater(margin="1e-6"),
        "checks.2.margin: found the text '1e-6', allowed: a number with a point, like 1.0e-6",
    ),
    "text as number": (greater(margin="a lot"), "margin: found 'a lot', allowed: .*number"),
    "not finite": (greater(margin=float("nan")), "margin: found nan, allowed: a finite number"),
    "direction": (greater(better="hi"), "better: found 'hi', allowed: higher, lower"),
    "test": (greater(test="wilcoxn"), "test: found 'wilcoxn'.*did you mean 'wilcoxon'"),
    "pair as text": (greater(pair="seed"), "pair: found 'seed', allowed: a value of type array"),
    "empty each": (greater(each={"bits": []}), "each.bits: found .*allowed: at least 1"),
    "truth value": (greater(where={"bits": True}), "where.bits: found True, allowed"),
    "metric as filter": (greater(where={"metric": "m"}), "where.metric: not a column to filter by"),
    "each and where": (
        greater(each={"bits": [1]}, where={"bits": 1}),
        "each.bits: found in where too, allowed: one of the two",
    ),
    "each and pair": (greater(each={"seed": [1]}), "each.seed: found in pair too"),
    "cluster not in pair": (
        greater(pair=["seed", "layer"], cluster=["layr"]),
        "cluster: found 'layr' .*did you mean 'layer'.*allowed: seed, layer",
    ),
    "any_of nothing": (
        greater(each={"bits": [1]}, any_of=["bit"]),
        "any_of: found 'bit' .*did you mean 'bits'.*allowed: bits",
    ),
    "against itself": (greater(than="ours"), "than: found 'ours', which is the arm itself"),
    "against itself, same factors": (
        greater(than="ours", where={"stages": 1}, than_where={"stages": 1}),
        "than: found 'ours', which is the arm itself",
    ),
    "gate as evidence": (greater(by="not_contradicted"), "by: found not_contradicted"),
    "gate as evidence, of a value": (
        KINDS["at_most"] | {"by": "not_contradicted"},
        "at_most also with the tolerance",
    ),
    "tolerance of an interval": (
        KINDS["at_most"] | {"tolerance": 0.1},
        "tolerance: found beside by: interval",
    ),
    "ratio without bound": (greater(kind="ratio"), "ratio: needs exactly one of at_most, at_least"),
    "ratio with two": (greater(kind="ratio", at_most=1, at_least=1), "ratio: needs exactly one"),
    "share of all": (greater(kind="share", at_least=1), "at_least: found 1, allowed: less than 1"),
    "share above one": (
        greater(kind="share", at_least=90),
        "at_least: found 90, allowed: at most 1",
    ),
    "exact of nothing": (
        {"kind": "exact", "metric": "m", "arm": "a"},
        "exact: needs exactly one of value, than",
    ),
    "exact without pairs": (
        {"kind": "exact", "metric": "m", "arm": "a", "than": "b"},
        "pair: goes with than",
    ),
    "rate upside down": (KINDS["rate"] | {"within": [-0.2, -0.6]}, r"within: found \[-0.2, -0.6\]"),
    "rate without bounds": (KINDS["rate"] | {"within": [None, None]}, "within: found"),
    "rate by unit": (
        KINDS["rate"] | {"pair": ["stages"]},
        "factor: found 'stages' in pair or each",
    ),
    "trend sideways": (
        KINDS["trend"] | {"direction": "positive"},
        "direction: found 'positive', allowed: rising, falling",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_check_is_refused(tmp_path: Path, name: str) -> None:
    check, words = WRONG[name]
    path = written(tmp_path, [claim(checks=[greater(), check])])
    with pytest.raises(PipelineError) as caught:
        load(path, "made_up")
    assert re.match("claims of made_up: claim C1: check(s.| )2", str(caught.value))
    assert re.search(words, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- id: C1\n  claim: [", "not valid YAML"),
        ("", r"claims of made_up: \(the file\): found None, allowed: a value of type array"),
        ("[]", r"allowed: at least 1"),
        ("- only text", "0: found 'only text', allowed: a value of type object"),
        ("- {id: C1, id: C2}", "line 1: the key 'id' stands twice"),
        ([claim(id="X1", check=greater())], "claim X1: id: found 'X1', allowed: text that matches"),
        ([claim(checks=[])], "claim C1: checks: found .*allowed: at least 1"),
        ([claim()], "claim C1: checks: missing, though judged_at is laptop, paper"),
        ([claim(check=greater(), checks=[greater()])], "check: found next to checks"),
        ([claim(check=greater())] * 2, "claim C1: id: found C1 a second time"),
        ([claim(check=greater(), judged_at=["smoke"])], "judged_at.0: found 'smoke', allowed: lap"),
        ([claim(check=greater(), not_testable={"laptop": "why"})], "not_testable.laptop: found in"),
        ([claim(check=greater(), partly_needs=3)], "partly_needs: found 3, allowed: 1 to 1"),
        ([claim(check=greater(), reportd={})], "reportd: unknown key .did you mean 'reported'"),
        ([claim(check=greater(), claim="")], "claim: found '', allowed: at least 10"),
        ([claim(check="greater")], "check: found 'greater', allowed: a value of type object"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        load(written(tmp_path, content), "made_up")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"claims\.yaml: missing"):
        load(tmp_path / "claims.yaml", "made_up")


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    checks = [greater(kind="ratio"), greater(than="ours")]
    with pytest.raises(PipelineError) as caught:
        load(written(tmp_path, [claim(checks=checks, partly_needs=5)]), "made_up")
    assert len(str(caught.value).splitlines()) == 3


def test_schema_describes_every_kind_and_only_known_keys() -> None:
    whole = schema.load_schema(module.SCHEMA)
    check = whole["$defs"]["check"]
    assert set(check["properties"]["kind"]["enum"]) == set(KINDS)
    described = set(check["properties"])
    for name, kind in whole["$defs"].items():
        if kind.get("additionalProperties") is False and name != "claim":
            assert set(kind["properties"]) <= described, name
            assert set(kind["required"]) <= set(kind["properties"]), name
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/check", "$defs": whole["$defs"]})
    for kind in KINDS.values():
        validator.validate(kind)


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "papers").glob("*/claims.yaml")))
def test_claims_of_the_papers_are_valid(path: Path) -> None:
    assert load(path, path.parent.name)


def test_import_is_cheap() -> None:
    heavy = "{'numpy', 'scipy', 'pandas', 'statsmodels', 'jsonschema', 'rich', 'torch'}"
    code = f"import sys, scripts.pipeline.ledger; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
