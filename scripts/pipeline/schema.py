"""YAML files checked against JSON schemas, with errors a person can act on."""

import difflib
import math
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scripts.pipeline.errors import PipelineError


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # YAML's own error comes below
            if key in seen:
                line = key_node.start_mark.line + 1
                raise PipelineError(f"line {line}: the key {key!r} stands twice; keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a YAML file safely; missing, unreadable or ambiguous files are a PipelineError."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except FileNotFoundError:
        raise PipelineError(f"{path}: missing") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: not valid YAML: {error}") from error
    except PipelineError as error:
        raise PipelineError(f"{path}: {error}") from None


def nearest(word: object, allowed: Iterable[object]) -> str:
    """' (did you mean ...?)' for the nearest right spelling, or nothing."""
    found = difflib.get_close_matches(str(word), [str(name) for name in allowed], n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def listed(values: Iterable[object]) -> str:
    """Values as 'a, b, c' for an error message."""
    return ", ".join(str(value) for value in values) or "nothing"


def check(value: Any, schema: Mapping, where: str) -> None:
    """Validate `value`; `where` names the file and section in the error.

    Raises:
        PipelineError: with a line for each fault: its key, its value and what is allowed.
    """
    faults = [line for error in _validator(schema).iter_errors(value) for line in _explain(error)]
    if faults:
        raise PipelineError("\n".join(f"{where}: {line}" for line in dict.fromkeys(faults)))


@cache
def load_schema(path: Path) -> dict:
    """A JSON schema kept in a YAML file (checked to be a schema itself)."""
    import jsonschema

    schema = read_yaml(path)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise PipelineError(f"{path}: not a JSON schema: {error.message}") from error
    return schema


def _validator(schema: Mapping):
    return _finite_numbers_only()(schema)


@cache
def _finite_numbers_only() -> Any:
    """The validator class, to which .nan and .inf are no numbers (JSON has none such)."""
    import jsonschema

    kind = jsonschema.Draft202012Validator
    number = kind.TYPE_CHECKER.is_type
    checker = kind.TYPE_CHECKER.redefine(
        "number",
        lambda _, value: (
            number(value, "number") and (not isinstance(value, float) or math.isfinite(value))
        ),
    )
    return jsonschema.validators.extend(kind, type_checker=checker)


def _explain(error: Any) -> list[str]:
    """Lines for one jsonschema error; of alternatives, the one that came nearest."""
    if error.validator in ("oneOf", "anyOf") and error.context:
        wanted = " or ".join(_type_of(option) for option in error.validator_value)
        typed = [part for part in error.context if part.validator != "type"]
        if not typed:
            return [f"{_key(error)}: found {_show(error.instance)}, allowed: {wanted}"]
        return [line for part in typed for line in _explain(part)]
    if error.validator == "additionalProperties" and error.validator_value is False:
        allowed = error.schema.get("properties", {})
        unknown = [key for key in error.instance if key not in allowed]
        return [
            f"{_key(error, key)}: unknown key{nearest(key, allowed)}; allowed: {listed(allowed)}"
            for key in unknown
        ]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [f"{_key(error, key)}: missing; it is required" for key in missing]
    return [f"{_key(error)}: found {_show(error.instance)}, {_rule(error)}"]


def _rule(error: Any) -> str:
    limit = error.validator_value
    match error.validator:
        case "enum":
            return f"allowed: {listed(limit)}{nearest(error.instance, limit)}"
        case "const":
            return f"allowed: {limit!r}"
        case "type":
            odd = isinstance(error.instance, float) and not math.isfinite(error.instance)
            return "allowed: a finite number" if odd else f"allowed: a value of type {limit}"
        case "minimum":
            return f"allowed: at least {limit}"
        case "maximum":
            return f"allowed: at most {limit}"
        case "exclusiveMinimum":
            return f"allowed: more than {limit}"
        case "exclusiveMaximum":
            return f"allowed: less than {limit}"
        case "pattern":
            return f"allowed: text that matches {limit}"
        case "minItems" | "minLength" | "minProperties":
            return f"allowed: at least {limit} of them"
        case "uniqueItems":
            return "allowed: each item once"
    return error.message


def _key(error: Any, last: object = None) -> str:
    path = [*error.absolute_path] + ([last] if last is not None else [])
    return ".".join(str(part) for part in path) or "(the file)"


def _type_of(option: Mapping) -> str:
    return str(option.get("type", option.get("enum", option.get("const", option))))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
