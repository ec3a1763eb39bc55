"""Reading YAML and explaining what is wrong with it."""

from pathlib import Path

import pytest

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.schema import check, listed, load_schema, nearest, read_yaml


def message_of(value: object, schema: dict) -> str:
    with pytest.raises(PipelineError) as error:
        check(value, schema, "here")
    return str(error.value)


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "integer"}, "x", "found 'x', allowed: a value of type integer"),
        ({"type": ["integer", "null"]}, "x", "allowed: a value of type ['integer', 'null']"),
        ({"type": "number"}, float("nan"), "found nan, allowed: a finite number"),
        ({"type": "number"}, True, "found True, allowed: a value of type number"),
        ({"enum": ["one", "two"]}, "tow", "allowed: one, two (did you mean 'two'?)"),
        ({"const": 3}, 4, "found 4, allowed: 3"),
        ({"minimum": 1}, 0, "found 0, allowed: at least 1"),
        ({"maximum": 1}, 2, "found 2, allowed: at most 1"),
        ({"exclusiveMinimum": 0}, 0, "allowed: more than 0"),
        ({"exclusiveMaximum": 1}, 1, "allowed: less than 1"),
        ({"pattern": "^a"}, "b", "found 'b', allowed: text that matches ^a"),
        ({"minItems": 2}, [1], "found [1], allowed: at least 2 of them"),
        ({"uniqueItems": True}, [1, 1], "allowed: each item once"),
        ({"multipleOf": 2}, 3, "found 3, 3 is not a multiple of 2"),
    ],
)
def test_message_of_each_rule(schema, value, message):
    text = message_of(value, schema)
    assert text.startswith("here: (the file): found ")
    assert text.endswith(message)


def test_nested_keys_are_given_in_full():
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert message_of({"a": [1, "x"]}, schema).startswith("here: a.1: found 'x'")


def test_each_unknown_and_each_missing_key_has_a_line():
    schema = {
        "required": ["x", "y"],
        "properties": {"x": {}, "y": {}},
        "additionalProperties": False,
    }
    lines = message_of({"xx": 1, "z": 2}, schema).splitlines()
    assert sorted(lines) == [
        "here: x: missing; it is required",
        "here: xx: unknown key (did you mean 'x'?); allowed: x, y",
        "here: y: missing; it is required",
        "here: z: unknown key; allowed: x, y",
    ]


def test_alternatives_tell_what_came_nearest():
    schema = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "object"}]}
    assert message_of("many", schema).endswith("found 'many', allowed: integer or object")
    assert message_of(0, schema).endswith("found 0, allowed: at least 1")


def test_a_long_value_is_cut_short():
    text = message_of("x" * 500, {"type": "integer"})
    assert len(text) < 150
    assert "..." in text


@pytest.mark.parametrize("value", [10**400, -(10**400), 0, 1.5])
def test_finite_numbers_of_any_size(value):
    check(value, {"type": "number"}, "here")


def test_nearest_and_listed():
    assert nearest("trian", ["train", "plot"]) == " (did you mean 'train'?)"
    assert nearest("xyz", ["train", "plot"]) == ""
    assert nearest(3, []) == ""
    assert listed([1, "a"]) == "1, a"
    assert listed([]) == "nothing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3: the key 'a' stands twice"),
        ("a: {b: 1, b: 2}\n", r"line 1: the key 'b' stands twice"),
        ("- {1: x, 1: y}\n", r"line 1: the key 1 stands twice"),
        ("a: [\n", r"not valid YAML"),
        ("? {a: 1}\n: 2\n", r"not valid YAML.*unhashable"),
        ("a: !!python/name:os.system\n", r"not valid YAML"),
    ],
)
def test_yaml_that_is_refused(text, message, tmp_path: Path):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=f"(?s)some.yaml: {message}"):
        read_yaml(path)


def test_yaml_that_is_read(tmp_path: Path):
    path = tmp_path / "some.yaml"
    path.write_text("a: {b: [1, 2.5, true, null, x]}\nc: {b: ü}\n", encoding="utf-8")
    assert read_yaml(path) == {"a": {"b": [1, 2.5, True, None, "x"]}, "c": {"b": "ü"}}


def test_a_schema_must_be_one(tmp_path: Path):
    path = tmp_path / "schema.yaml"
    path.write_text("type: 3\n")
    with pytest.raises(PipelineError, match=r"schema\.yaml: not a JSON schema"):
        load_schema(path)
    with pytest.raises(PipelineError, match=r"other\.yaml: missing"):
        load_schema(tmp_path / "other.yaml")
