"""Count the found, used and left-out parts of a folder."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

OPTION = "--allow-left-out"  # accepts left-out parts without a question
_FEW = 20  # one in twenty parts may be left out without consent
_NAMED = 3  # files named per line


@dataclass(frozen=True)
class LeftOut:
    """Parts of one kind that are left out for one reason."""

    kind: str  # plural, such as `images`
    names: Sequence[str]  # of the parts, such as relative paths, or of folders that are left out as a whole
    why: str
    count: int
    whole_folder: bool = False  # whether `names` are folders
    agreed: bool = False  # whether a person has agreed, or a public data set's reader does not need the parts

    def __str__(self) -> str:
        kind = self.kind
        if self.count == 1:
            kind = kind.removesuffix("es") if kind == "classes" else kind.removesuffix("s")
        named = ", ".join(self.names[:_NAMED]) + (", ..." if len(self.names) > _NAMED else "")
        if self.whole_folder:
            return f"{self.count} {kind} in {named} ({self.why})"
        return f"{self.count} {kind} ({self.why}): {named}"


@dataclass(frozen=True)
class Inventory:
    """Parts of a folder by kind: images, masks, videos, pages, classes, splits."""

    used: Mapping[str, int]  # number of parts of each kind
    left_out: tuple[LeftOut, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)  # on a kind, such as the names of the classes

    def count_left_out(self, kind: str) -> int:
        """Return the number of left-out parts of a kind."""
        return sum(part.count for part in self.left_out if part.kind == kind)

    @property
    def needs_consent(self) -> list[LeftOut]:
        """Parts left out without consent: more than one in twenty of a kind, or a whole folder."""
        pending = [part for part in self.left_out if not part.agreed]
        counts: Counter[str] = Counter()
        for part in pending:
            counts[part.kind] += part.count
        much = {kind for kind, n in counts.items() if n * _FEW > self.used.get(kind, 0) + self.count_left_out(kind)}
        return [part for part in pending if part.whole_folder or part.kind in much]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table of kinds, and a line for each reason."""
        kinds = list(dict.fromkeys([*self.used, *(part.kind for part in self.left_out)]))
        width = max(map(len, kinds), default=0)
        yield f"  {'':<{width}}{'found':>9}{'used':>9}{'left out':>10}"
        for kind in kinds:
            used, left_out = self.used.get(kind, 0), self.count_left_out(kind)
            yield f"  {kind:<{width}}{used + left_out:>9}{used:>9}{left_out:>10}  {self.remarks.get(kind, '')}".rstrip()
        yield from (f"  left out: {part}" for part in self.left_out)


def left_out_files(
    kinds: Mapping[str, str],
    used: Collection[str],
    why: Callable[[str], str],
    *,
    agreed: Callable[[str], bool] = lambda path: False,
) -> tuple[LeftOut, ...]:
    """Group unused files by kind and reason, and by folder if the whole folder is unused.

    ``kinds`` has the kind of each file by relative path; ``why`` and ``agreed`` return the fields of `LeftOut`.
    """
    used_folders = {folder for path in used for folder in _folders(path)}
    counts: Counter[tuple[str, str, bool, bool]] = Counter()
    names: dict[tuple[str, str, bool, bool], dict[str, None]] = defaultdict(dict)
    for path, kind in kinds.items():
        if path not in used:
            idle = next((folder for folder in _folders(path) if folder not in used_folders), "")
            group = kind, why(path), bool(idle), agreed(path)
            counts[group] += 1
            names[group][f"{idle}/" if idle else path] = None
    return tuple(
        LeftOut(kind, tuple(names[kind, reason, whole, consent]), reason, count, whole, consent)
        for (kind, reason, whole, consent), count in counts.items()
    )


def _folders(path: str) -> list[str]:
    """Return the folders above a path, from the top."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:stop]) for stop in range(1, len(parts) + 1)]
