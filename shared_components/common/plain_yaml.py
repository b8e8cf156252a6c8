"""Read untrusted YAML with limits on size and depth; every error is one sentence."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MOST_NODES = 50_000
"""Maximum number of values, lists and mappings; each alias counts again, since ten lines can expand to a billion."""
MOST_LEVELS = 32
"""Maximum depth of nested lists and mappings."""
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors of PyYAML for values that contradict their form or tag: the date 2026-13-45, `!!bool perhaps`."""


_BY_LIBYAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 2 ms a config instead of 24 if libyaml is installed


class YamlError(ValueError):
    """Invalid or oversized YAML; the caller puts the name of the file or key before the message."""


def beside(module: str, name: str) -> str:
    """Return the text of a file that is shipped beside a module, given the module's `__file__`."""
    return Path(module).with_name(name).read_text("utf-8")


def read_own_yaml(text: str) -> Any:
    """Read a document shipped with this package, without limits, as yaml.safe_load does."""
    return _BY_LIBYAML(text).get_single_data()


def read_yaml(text: str) -> Any:
    """Read one document; a key that is a list becomes a tuple.

    YamlError if the document is invalid, repeats a key, has a mapping as a key, has a value that cannot be read or
    refers to itself, or has more than `MOST_LEVELS` levels or `MOST_NODES` nodes.
    """
    return copy.deepcopy(_read(text))


@functools.lru_cache(maxsize=16)
def _read(text: str) -> Any:
    """Read one document, cached: a site reads its file several times a round, which takes milliseconds."""
    try:
        _refuse_bombs(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        _refuse_repeats(node)
        return None if node is None else loader.construct_document(node)
    except YamlError:
        raise
    except yaml.YAMLError as error:
        raise YamlError(f"is not valid YAML ({_one_line(error)}); correct that line") from error
    except _UNREADABLE as error:
        raise YamlError(f"contains a value that cannot be read ({_one_line(error)}); correct it") from error


class _Loader(yaml.SafeLoader):
    """Loader that also accepts lists as keys, for the colours of `ids`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping in which keys that are lists become tuples."""
        self.flatten_mapping(node)
        return {self._key(name): self.construct_object(value, deep=deep) for name, value in node.value}

    def _key(self, node: yaml.Node) -> Any:
        key = self.construct_object(node, deep=True)
        key = tuple(key) if isinstance(key, list) else key
        try:
            hash(key)
        except TypeError:
            line = node.start_mark.line + 1
            raise YamlError(f"has a mapping or a list of lists as a key in line {line}; write a name") from None
        return key


@dataclass
class _Part:
    """Number of nodes and levels of an open list or mapping so far."""

    anchor: str | None = None
    nodes: int = 1
    levels: int = 1

    def add(self, other: _Part) -> None:
        self.nodes += other.nodes
        self.levels = max(self.levels, 1 + other.levels)


def _refuse_bombs(text: str) -> None:
    """Refuse endless, too deep or too large documents by their parser events, before objects are built."""
    within, known = [_Part()], dict[str | None, _Part]()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in [part.anchor for part in within]:
                raise YamlError(f"refers to itself (*{event.anchor}); write the value out")
            within[-1].add(known.get(event.anchor, _Part()))
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append(_Part(event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            known[within[-1].anchor] = within[-1]
            within[-2].add(within.pop())
        elif isinstance(event, yaml.ScalarEvent):
            within[-1].add(_Part(levels=0))
        if len(within) + within[-1].levels - 2 > MOST_LEVELS:
            raise YamlError(f"nests lists or mappings more than {MOST_LEVELS} deep; write it flatter")
        if sum(part.nodes for part in within) > MOST_NODES:
            raise YamlError(f"contains more than {MOST_NODES} values, counted again at each alias; shorten it")


def _refuse_repeats(node: yaml.Node | None) -> None:
    """Refuse a repeated key, because YAML would silently keep its last value."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeats(item)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str([one.value for one in key.value] if isinstance(key, yaml.SequenceNode) else key.value)
        if name in seen:
            raise YamlError(f"key {name!r} is given twice (again in line {key.start_mark.line + 1}); keep one of them")
        seen.add(name)
        _refuse_repeats(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
