"""Ledger of all noisy updates of a site's data, in ``site.privacy.jsonl`` beside the ``site.yaml``.

The file has a line for every noisy update of every job. An update is entered before it leaves, and counts even if it
never arrives. Entries are never removed; only the hospital may move the file away, when the site.yaml names other data.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from shared_components.common.atomic import lock, write_text
from shared_components.common.schema import fits
from shared_components.data.site import Site, SiteError
from shared_components.federation.privacy.gaussian import Multiplier

ENDING = ".privacy.jsonl"


@dataclass(frozen=True)
class Entry:
    """One noisy update."""

    job: str
    run: str
    round: int  # from 0
    noise_multiplier: float
    clip: float
    clipped: bool  # whether the change was larger than ``clip``
    sha256: str  # hash of the noisy pieces, see `store.hash_of`
    when: str  # UTC

    def __post_init__(self) -> None:
        if type(self.round) is not int or not fits(self.noise_multiplier, Multiplier):
            raise ValueError(f"round {self.round!r:.80}, noise_multiplier {self.noise_multiplier!r:.80}")


def ledgers(site: Site) -> list[Path]:
    """Return the ledgers of a site's updates: its own, and the ledger of the site whose frames it adds."""
    return list(owners(site))


def owners(site: Site) -> dict[Path, Site]:
    """Return the owner of the frames behind each ledger; SiteError if there is a second ledger beside a link."""
    by_file = {}
    for owner in filter(None, (site, site.added)):
        file, beside = owner.path.resolve().with_suffix(ENDING), owner.path.with_suffix(ENDING)
        if beside.is_file() and beside.resolve() != file.resolve():
            raise SiteError(f"{beside}: is an account beside a link to the site; move its lines into {file}")
        by_file[file] = owner
    return by_file


def read_ledger(path: Path) -> list[Entry]:
    """Return all entries, oldest first; empty if there is no file; SiteError if any line is damaged."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Entry(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        problem = f"the account of what was sent of these data is damaged ({error})"
        raise SiteError(f"{path}: {problem}; put an intact copy there") from error


def enter(site: Site, entry: Entry, *, check: Callable[[Path, list[Entry]], None] = lambda path, entries: None) -> None:
    """Write an entry into a site's ledgers before the update leaves; after a SiteError nothing may leave.

    ``check(path, entries)`` may raise; it is called for each ledger while no other job can enter.
    """
    for path in ledgers(site):  # check all before anything is entered
        with locked(path):
            check(path, read_ledger(path))
    for path in ledgers(site):
        with locked(path):
            check(path, entries := read_ledger(path))
            lines = [json.dumps(asdict(line), sort_keys=True) for line in (*entries, entry)]
            write_text(path, "".join(f"{line}\n" for line in lines))


def releases(entries: list[Entry]) -> Counter[float]:
    """Count updates by noise multiplier, for `gaussian.epsilon`."""
    return Counter(entry.noise_multiplier for entry in entries)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a ledger between reading and writing it; SiteError if it cannot be written."""
    try:
        with path.with_suffix(".lock").open("a", encoding="utf-8") as file:
            lock(file)
            yield
    except OSError as error:
        problem = f"the account of what is sent of these data cannot be written ({error.strerror or error})"
        raise SiteError(f"{path}: {problem}; let the site write into this folder") from error
