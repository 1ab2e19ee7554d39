"""YAML of strangers as plain values: the one home of PyYAML. No tags, no aliases, bounded in size."""

from __future__ import annotations

#: Larger documents are a dump of a whole cluster; JSON is read instead.
_LARGEST = 32 << 20


class BadYaml(Exception):
    """The text is no YAML, uses aliases, or is too large."""


def load_all(data: bytes) -> list[object]:
    """Every document of a text: mappings, lists, texts, numbers, booleans and None. Raises ``BadYaml``.

    Aliases are refused: a few lines of them stand for billions of values, and kubectl writes none.
    """
    if len(data) > _LARGEST:
        raise BadYaml(f"larger than {_LARGEST >> 20} MiB")
    import yaml  # not for every reader: few sources are YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=loader)):
            raise BadYaml("aliases are refused")
        return list(yaml.load_all(data, Loader=loader))  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise BadYaml(str(problem).replace("\n", " ")[:160]) from problem
