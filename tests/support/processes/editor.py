"""YAML as an editor reads it: by the core schema of YAML 1.2, without dates."""

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class has it


for _tag, _pattern in {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
}.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None
    )
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


def as_editor_reads(text: str) -> Any:
    """Parse YAML into what a JSON Schema is applied to; names are always strings."""
    return _with_string_names(yaml.load(text, Loader=_Loader))


def _with_string_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _with_string_names(each) for name, each in value.items()}
    return [_with_string_names(each) for each in value] if isinstance(value, list) else value
