"""Check what each site enrols with, and whether the sites fit together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any

from torch import Tensor

from shared_components.common.counted import counted
from shared_components.core.card import Card
from shared_components.core.initial_weights import FILE, describe_start
from shared_components.core.method import Method, Models, Profile
from shared_components.core.partition import Partition, Pieces, Role, fixed_hash
from shared_components.core.task import make_task
from shared_components.data.profile_items import TEXT_VECTOR
from shared_components.federation.messages import FederationError, Job, Reply
from shared_components.federation.messages.schema import PROFILE, check_reply_header
from shared_components.federation.setup.allowed_payload import Expected, FirstWeights, expect, first_weights
from shared_components.federation.setup.site_setup import wrong_kind

LARGEST_WEIGHT = 1e6  # of a network before its first round; buffers of running variances included
NEAR = 1e-3  # how far a first piece may be from this machine's, x (1 + its norm): processors round differently
FAR = 100  # likewise of all pieces, from what the seed gives, where the sites' file is not on this machine
LARGEST_RATIO = 10_000  # of a site's samples to the median of the others'


def profile_of(site: str, values: Mapping[str, Any]) -> Profile:
    """Return a site's profile from the header of its parsed reply to `enrol`."""
    card, items, start = Card.from_json(values["card"]), dict(values["items"]), dict(values["start"])
    return Profile(site, values["samples"], card, items, values["fixed"], values["prepared"], start)


def load_profile(site: str, header: Mapping[str, Any]) -> Profile:
    """Return a site's profile from a saved state; FederationError where it is malformed."""
    try:
        return profile_of(site, check_reply_header("enrol", header, f"the profile of {site}", required=PROFILE))
    except ValueError as error:
        raise FederationError(f"{error}; use one version of surgfl everywhere") from error


@dataclass(frozen=True)
class Enrolment:
    """What a site enrolled with, checked by itself."""

    profile: Profile
    partition: Partition  # of its network, as it follows from the job and the site's task
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of the pieces that the method shares, by name
    pieces: Pieces  # its weights; empty where it was not asked for them


class EnrolmentReader:
    """Reads the sites' answers to `enrol`, and checks each against what follows from the job and the site's task."""

    def __init__(self, job: Job, method: Method, *, file: Path | None = None) -> None:
        self._job, self._method, self._file = job, method, file
        self._expected: dict[Card, Expected] = {}
        self._first: dict[Card, FirstWeights] = {}

    def read(self, site: str, reply: Reply, *, asked: bool) -> Enrolment:
        """Return what a site enrolled with, by its parsed reply; ``asked``: it was asked for its weights.

        Raises:
            FederationError: It is malformed, of no task of the job, withholds what the method needs, or its network,
                start, FIXED or first weights are not those of the job.
        """
        method, profile = self._method, profile_of(site, reply.header)
        if refusal := wrong_kind(method, profile.card):
            raise FederationError(f"{site}: {refusal}")
        if kept_back := sorted(method.requires.items - set(profile.items)):
            raise FederationError(f"{site} enrols without {kept_back[0]!r}, which {method.name} needs")
        expected = self._expected_of(site, profile.card)
        _refuse_other(site, "network partition", reply.header.get("partition", []), expected.partition.to_json())
        first = self._first_weights(expected, profile.card)
        same = _refuse_other_start(site, profile, first, expected.partition, self._job.open_bundle().training.start)
        if asked:
            began = Expected(method, expected.task, first.state, expected.partition).pieces(Role.GLOBAL, Role.MIXED)
            _check_first_weights(site, reply.pieces, began, same=same)
        elif reply.pieces:
            raise FederationError(f"{site} enrols with weights that nobody asked for")
        if reply.groups:
            raise FederationError(f"{site} enrols with {min(reply.groups)!r}, which nobody asked for")
        shapes = tuple((name, tuple(value.shape)) for name, value in expected.pieces(Role.GLOBAL).items())
        return Enrolment(profile, expected.partition, shapes, dict(reply.pieces))

    def _expected_of(self, site: str, card: Card) -> Expected:
        """Build what each card's sites answer with once; FederationError where the card does not fit the job."""
        if card not in self._expected:
            try:
                bundle = self._job.open_bundle()
                if card.kind not in bundle.tasks:
                    kinds = ", ".join(bundle.tasks)
                    raise ValueError(f"the network of {bundle.name} learns {kinds}, and no {card.kind!r}")
                task = make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs)
                self._expected[card] = expect(self._job, self._method, task)
            except ValueError as error:
                raise FederationError(f"{site} enrols with a task that does not fit the job: {error}") from error
        return self._expected[card]

    def _first_weights(self, expected: Expected, card: Card) -> FirstWeights:
        """Build each card's network once; FederationError where this machine lacks what the job begins from."""
        if card not in self._first:
            try:
                self._first[card] = first_weights(self._job, expected.task, file=self._file)
            except ValueError as error:
                raise FederationError(f"the server cannot tell what sites begin from: {error}") from error
        return self._first[card]


def _refuse_other_start(site: str, profile: Profile, first: FirstWeights, partition: Partition, kind: str) -> bool:
    """Refuse a site that does not begin as the job says; return whether this machine has the weights it begins from."""
    if kind == FILE and profile.start["start"] == FILE and profile.start != first.start:
        return False  # the site's file is not on this machine; sites are compared with one another
    expected = first.start or {"start": kind, "sha256": ""}
    _refuse_other(site, "start", describe_start(profile.start), describe_start(expected))
    _refuse_other(site, "start", _in_full(profile.start), _in_full(expected))
    _refuse_other(site, "fixed weights", profile.fixed, fixed_hash(first.state, partition))
    return True


def _refuse_other(site: str, what: str, value: Any, expected: Any) -> None:
    if value != expected:
        values = f"{_short(value)} at the site, {_short(expected)} of the job"
        raise FederationError(
            f"{site} enrols with {what} other than the job's ({values}); use one version of surgfl, of the bundle and "
            "of what the sites begin from"
        )


def _check_first_weights(site: str, pieces: Mapping[str, Tensor], began: Pieces, *, same: bool) -> None:
    """Refuse, by a FederationError that names the piece, weights that a network of this job does not begin from.

    ``began`` are this machine's. Unless both begin from the ``same``, the site's file is not here, and of the distance
    only a size can be checked.
    """
    if odd := sorted(set(pieces) ^ set(began)):
        raise FederationError(f"{site} enrols with other pieces than its network has, the first is {odd[0]}")
    moved, size = 0.0, 0.0
    for name, value in pieces.items():
        place = began[name]
        if value.shape != place.shape or value.dtype != place.dtype:
            raise FederationError(
                f"{site} enrols with {name} of {value.dtype} {tuple(value.shape)}; its network has "
                f"{place.dtype} {tuple(place.shape)}"
            )
        if value.is_floating_point() and not bool((value.abs() <= LARGEST_WEIGHT).all()):
            raise FederationError(
                f"{site} enrols with values in {name} that are not finite, or beyond {LARGEST_WEIGHT:g}"
            )
        apart, norm = float((value.double() - place.double()).norm()), float(place.double().norm())
        if same and not apart <= NEAR * (1 + norm):
            raise FederationError(
                f"{site} enrols with {name} that differs by {apart:.3g} from what the job's start gives, whose norm is "
                f"{norm:.3g}; use one version of surgfl, of the bundle and of what the sites begin from"
            )
        moved, size = moved + apart**2, size + norm**2
    if not moved**0.5 <= FAR * (1 + size**0.5):
        raise FederationError(
            f"{site} enrols with weights that differ by {moved**0.5:.3g} from a new network's, whose norm is "
            f"{size**0.5:.3g}; look at the file that it begins from"
        )


def outlying_counts(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return the sites that claim too many samples beside the others, with a sentence for each.

    Of fewer than three sites it is not known which one is wrong, and none is named.
    """
    found: dict[str, str] = {}
    for site, profile in profiles.items() if len(profiles) > 2 else ():
        others = median_high(other.samples for name, other in profiles.items() if name != site)
        if profile.samples > LARGEST_RATIO * others:
            found[site] = (
                f"{site} enrols with {profile.samples} training samples, over {LARGEST_RATIO} times the others' median "
                f"of {others}"
            )
    return found


def profile_header(profile: Profile) -> dict[str, Any]:
    """Undo `load_profile`."""
    return {
        "samples": profile.samples,
        "card": profile.card.to_json(),
        "items": dict(profile.items),
        "fixed": profile.fixed,
        "prepared": profile.prepared,
        "start": dict(profile.start),
    }


def disagreeing(method: Method, entered: Mapping[str, Enrolment]) -> dict[str, str]:
    """Return the sites that differ from the majority, with a sentence for each; they do not count in later comparisons.

    Raises:
        FederationError: There is no majority, so that it is not known which sites are wrong.
    """
    found: dict[str, str] = {}
    for what, where, value in COMPARED:
        if what == "task" and method.requires.multi_task:
            continue
        values = {site: value(one) for site, one in entered.items() if site not in found}
        found |= _minority(what, {site: each for site, each in values.items() if each != ""}, where)
    return found


COMPARED: tuple[tuple[str, str, Callable[[Enrolment], Hashable]], ...] = (
    ("task", "task and classes in site.yaml", lambda one: one.profile.card),
    ("network partition", "task and classes in site.yaml", lambda one: one.partition),
    ("shared pieces", "task and classes in site.yaml", lambda one: one.shapes),
    ("start", "the weights that they begin from", lambda one: _in_full(one.profile.start)),
    ("fixed weights", "the weights that they begin from, which are not trained,", lambda one: one.profile.fixed),
    ("encoder", "text_vectors or text_encoder in site.yaml", lambda one: one.profile.prepared),
    ("text vectors' encoder", "text_vectors or text_encoder in site.yaml", lambda one: _vector_of(one.profile)),
)
"""What sites must have in common: its name, where to correct it, and its value; an empty one is not compared."""


def _minority(what: str, values: Mapping[str, Hashable], where: str) -> dict[str, str]:
    groups: dict[Hashable, list[str]] = {}
    for site, value in values.items():
        groups.setdefault(value, []).append(site)
    if len(groups) < 2:
        return {}
    most, members = max(groups.items(), key=lambda group: len(group[1]))
    if 2 * len(members) <= len(values):
        names = " and ".join(", ".join(group) for group in groups.values())
        raise FederationError(f"{names} differ in their {what} ({_shown(*groups)}); make {where} agree")
    return {
        site: f"{members[0]} and {site} differ in their {what} ({_shown(most, value)}); make {where} agree"
        for site, value in values.items()
        if value != most
    }


def initial_models(method: Method, partition: Partition, sites: Sequence[str], given: Mapping[str, Pieces]) -> Models:
    """Return what all start from: the first site's weights; where sites have several tasks, each its own MIXED ones."""

    def of_role(pieces: Pieces, role: Role) -> Pieces:
        return {name: pieces[name] for name in partition.with_roles(role) if name in pieces}

    first = given[sites[0]]
    shared = of_role(first, Role.GLOBAL)
    own = {site: given[site] if method.requires.multi_task else first for site in sites}
    return Models(shared, {site: of_role(pieces, Role.MIXED) for site, pieces in own.items()})


def check_as_before(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> None:
    """Refuse a resume with another task, data, start, FIXED weights or encoder; FederationError names the first."""
    for site, profile in before.items():
        for key, sentence in _CHANGED_PROFILE.items():
            pair = [getattr(one, key) for one in (now[site], profile)]
            if pair[0] != pair[1]:
                texts = [describe_start(value) if key == "start" else value or "none" for value in pair]
                raise FederationError(f"{site} has {sentence.format(*texts)} to resume, or start a new run")


_CHANGED_PROFILE = {
    "card": "another task than when the run began ({} now, {} then); restore it",
    "samples": "other data than when the run began ({} training frames now, {} then); restore it",
    "start": "another start than when the run began ({} now, {} then); restore the file",
    "fixed": "other fixed weights than when the run began; restore the weights that it began from",
    "prepared": "another encoder than when the run began ({} now, {} then); restore text_vectors or text_encoder in "
    "site.yaml",
}
"""Error message for each profile field that changed since the run started."""


def _vector_of(profile: Profile) -> str:
    item = profile.items.get(TEXT_VECTOR)
    return f"{item['encoder']}, {counted(len(item['values']), 'number')}" if item else ""


def _in_full(start: Mapping[str, str]) -> str:
    return f"{start['start']} {start['sha256']}".strip()


def _shown(*values: Hashable) -> str:
    """Show what differs: of pieces the first that not all of them have alike, else the values."""
    if all(isinstance(value, tuple) for value in values):
        pieces = [dict(value) for value in values]  # type: ignore[call-overload]
        name = min(name for each in pieces for name in each if any(p.get(name) != each[name] for p in pieces))
        return " and ".join(f"{name} {each.get(name, 'missing')}" for each in pieces)
    return " and ".join(map(_short, values))


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, (str, Card)) else f"{len([*value])} pieces"
    return text if len(text) < 120 else f"{text[:117]}..."
