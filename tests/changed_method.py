"""A method with some of its fields changed, for tests that need a method which no paper has."""

from dataclasses import replace
from typing import Any

from shared_components.core.method import Method

GROUPS = ("server", "local", "requires", "about")


def changed(method: Method, **fields: Any) -> Method:
    """Return the method with other fields; those of a group by its name in front: ``local_objective``."""
    groups: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for name, value in fields.items():
        group, _, field = name.partition("_")
        if group in GROUPS and field:
            groups.setdefault(group, {})[field] = value
        else:
            top[name] = value
    return replace(method, **top, **{g: replace(getattr(method, g), **new) for g, new in groups.items()})
