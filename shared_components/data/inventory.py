"""Count the parts of a folder: found, used, and left out with the reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

OPTION = "--allow-left-out"
"""Option that accepts the parts left out if nobody is asked."""
_FEW = 20  # one part in so many may be left out without a word of consent
_NAMED = 3  # files that a line lists


@dataclass(frozen=True)
class LeftOut:
    """Parts of a folder of the same kind that are left out for the same reason.

    Attributes:
        kind: in the plural, such as `images`.
        names: of the parts, such as paths below the folder; or names of folders that are left out whole.
        count: how many parts.
        whole_folder: whether `names` are folders.
        agreed: whether a person has asked for it, or a public data set's reader does not need it.
    """

    kind: str
    names: Sequence[str]
    why: str
    count: int
    whole_folder: bool = False
    agreed: bool = False

    def __str__(self) -> str:
        kind = self.kind.removesuffix("es") if self.kind == "classes" else self.kind.removesuffix("s")
        kind = kind if self.count == 1 else self.kind
        more = ", ..." if len(self.names) > _NAMED else ""
        named = ", ".join(self.names[:_NAMED]) + more
        return (
            f"{self.count} {kind} in {named} ({self.why})"
            if self.whole_folder
            else f"{self.count} {kind} ({self.why}): {named}"
        )


@dataclass(frozen=True)
class Inventory:
    """Parts of a folder by kind: images, masks, videos, pages, classes, splits.

    Attributes:
        used: how many of each kind are used.
        left_out: the others.
        remarks: a few words on a kind, such as the names of the classes.
    """

    used: Mapping[str, int]
    left_out: tuple[LeftOut, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)

    def count_left_out(self, kind: str) -> int:
        """Return how many parts of a kind are left out."""
        return sum(one.count for one in self.left_out if one.kind == kind)

    @property
    def needs_consent(self) -> list[LeftOut]:
        """Parts left out without consent: more than one in twenty of a kind, or a whole folder."""
        open_ = [one for one in self.left_out if not one.agreed]
        return [one for one in open_ if one.whole_folder or self._is_much(one.kind, open_)]

    def _is_much(self, kind: str, left_out: Sequence[LeftOut]) -> bool:
        count = sum(one.count for one in left_out if one.kind == kind)
        return count * _FEW > self.used.get(kind, 0) + self.count_left_out(kind)

    def lines(self) -> Iterator[str]:
        """Yield a table of the kinds, and a line for each reason."""
        kinds = list(dict.fromkeys([*self.used, *(one.kind for one in self.left_out)]))
        width = max(map(len, kinds), default=0)
        yield f"  {'':<{width}}{'found':>9}{'used':>9}{'left out':>10}"
        for kind in kinds:
            used, left_out = self.used.get(kind, 0), self.count_left_out(kind)
            row = f"  {kind:<{width}}{used + left_out:>9}{used:>9}{left_out:>10}  {self.remarks.get(kind, '')}"
            yield row.rstrip()
        yield from (f"  left out: {one}" for one in self.left_out)


def left_out_files(
    kinds: Mapping[str, str],
    used: Collection[str],
    why: Callable[[str], str],
    *,
    agreed: Callable[[str], bool] = lambda path: False,
) -> tuple[LeftOut, ...]:
    """Return the files that are not used, by kind and reason, and by folder where all in it is left out.

    Args:
        kinds: the kind of each file by its path below the root.
        why: the reason for a path; ``agreed`` as of `LeftOut`.
    """
    busy = {folder for path in used for folder in _folders(path)}
    counts: Counter[tuple[str, str, bool, bool]] = Counter()
    names: dict[tuple[str, str, bool, bool], dict[str, None]] = defaultdict(dict)
    for path, kind in kinds.items():
        if path not in used:
            idle = next((folder for folder in _folders(path) if folder not in busy), "")
            group = kind, why(path), bool(idle), agreed(path)
            counts[group] += 1
            names[group][f"{idle}/" if idle else path] = None
    return tuple(
        LeftOut(kind, tuple(names[group]), reason, count, whole, consent)
        for group, count in counts.items()
        for kind, reason, whole, consent in [group]
    )


def _folders(path: str) -> list[str]:
    """Return the folders above a path, the uppermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:stop]) for stop in range(1, len(parts) + 1)]
