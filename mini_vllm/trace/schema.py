"""The fields of a trace and how to check them. Knows schema.json and the part of JSON Schema that it uses. Chapter 4.

Every line of a file is checked, so the schema is turned into functions once; a library would take seconds for a run of
2,000 steps, and the package reads traces with the standard library alone.
"""

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

FORMAT = "mini_vllm.trace"
VERSION = 1

# A check returns "" if the value is right, else where and what is wrong: ".computed.R1 is 3, not a list".
Check = Callable[[Any], str]
KINDS: dict[str, tuple[str, set[type]]] = {
    "object": ("an object", {dict}),
    "array": ("a list", {list}),
    "string": ("a text", {str}),
    "integer": ("a whole number", {int}),
    "number": ("a number", {int, float}),
    "null": ("null", {type(None)}),
}


@cache
def schema() -> dict[str, Any]:
    return json.loads(resources.files("mini_vllm.trace").joinpath("schema.json").read_text(encoding="utf-8"))


@cache
def step_fields() -> tuple[str, ...]:
    """Names of a record's fields, in the order in which things happen in a step."""
    return tuple(schema()["$defs"]["step"]["properties"])


@cache
def checker(name: str) -> Check:
    """The check of "header" or "step"."""
    return _compile(schema()["$defs"][name])


def _compile(rule: dict[str, Any]) -> Check:
    if "$ref" in rule:
        return checker(rule["$ref"].rsplit("/", 1)[-1])
    if "const" in rule or "enum" in rule:
        allowed = rule.get("enum", [rule.get("const")])
        listed = " or ".join(json.dumps(value) for value in allowed)
        return lambda value: "" if value in allowed and not isinstance(value, bool) else _wrong(value, listed)
    kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    words = " or ".join(KINDS[kind][0] for kind in kinds)
    types = set().union(*(KINDS[kind][1] for kind in kinds))
    inside = _compile_inside(rule)
    # Not isinstance, which would take True for a number.
    return lambda value: inside(value) if type(value) in types else _wrong(value, words)


def _compile_inside(rule: dict[str, Any]) -> Check:
    """What is asked of a value that has the right type."""
    if "object" in rule["type"]:
        return _object(rule)
    if "array" in rule["type"]:
        return _array(rule)
    least = rule.get("minimum")
    return lambda value: "" if least is None or value >= least else f" is {value}, at least {least} is needed"


def _object(rule: dict[str, Any]) -> Check:
    known = {name: _compile(each) for name, each in rule.get("properties", {}).items()}
    other = _compile(rule["additionalProperties"]) if "additionalProperties" in rule else None
    required = rule.get("required", ())

    def check(value: dict[str, Any]) -> str:
        for name in required:
            if name not in value:
                return f" needs '{name}'"
        for name, item in value.items():
            each = known.get(name, other)
            if each is not None and (problem := each(item)):
                return f".{name}{problem}"
        return ""

    return check


def _array(rule: dict[str, Any]) -> Check:
    by_place = [_compile(each) for each in rule.get("prefixItems", ())]
    every = _compile(rule["items"]) if "items" in rule else None
    length = rule.get("minItems")  # where a length is asked for, it is an exact one

    def check(value: list | None) -> str:
        if value is None:
            return ""
        if length is not None and len(value) != length:
            return f" is {_shown(value)}, a list of {length} is needed"
        for i, item in enumerate(value):
            each = every or by_place[i]
            if problem := each(item):
                return f"[{i}]{problem}"
        return ""

    return check


def _wrong(value: Any, words: str) -> str:
    return f" is {_shown(value)}, not {words}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"
