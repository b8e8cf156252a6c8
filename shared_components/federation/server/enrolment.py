"""Enrolment at the server: check each site against the job, compare the sites, leave out the sites that do not fit."""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any

from torch import Tensor

from shared_components.common.counted import FEW, counted, first_few
from shared_components.common.sanitise import one_line
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

LARGEST_WEIGHT = 1e6  # in an initial network, including running variances
NEAR = 1e-3  # largest distance of an initial piece from the server's, x (1 + its norm): processors round differently
FAR = 100  # largest distance of all pieces from the seed's, if the server lacks the file that the sites start from
LARGEST_RATIO = 10_000  # of a site's samples to the median of the other sites
SAME_VERSION = "use one version of surgfl, of the bundle and of what the sites begin from"

logger = logging.getLogger(__name__)


def profile_of(site: str, values: Mapping[str, Any]) -> Profile:
    """Return a site's profile from the header of its parsed reply to `enrol`."""
    card, items, start = Card.from_json(values["card"]), dict(values["items"]), dict(values["start"])
    return Profile(site, values["samples"], card, items, values["fixed"], values["prepared"], start)


def load_profile(site: str, header: Mapping[str, Any]) -> Profile:
    """Return a site's profile from a saved state; FederationError if it is malformed."""
    try:
        return profile_of(site, check_reply_header("enrol", header, f"the profile of {site}", required=PROFILE))
    except ValueError as error:
        raise FederationError(f"{error}; use one version of surgfl everywhere") from error


def profile_header(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain values, for `load_profile`."""
    plain = {"card": profile.card.to_json(), "items": dict(profile.items), "start": dict(profile.start)}
    return plain | {key: getattr(profile, key) for key in ("samples", "fixed", "prepared")}


@dataclass(frozen=True)
class Enrolment:
    """A site's enrolment, checked against the job."""

    profile: Profile
    partition: Partition  # as it follows from the job and the site's task
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of the GLOBAL pieces
    pieces: Pieces  # initial weights; empty unless the server asked for them


def _refuse_other_start(site: str, profile: Profile, first: FirstWeights, partition: Partition, kind: str) -> bool:
    """Refuse a site with another start than the job; return whether the server has the same initial weights."""
    if kind == FILE and profile.start["start"] == FILE and profile.start != first.start:
        return False  # the server lacks the sites' file; the sites are compared with one another
    expected = first.start or {"start": kind, "sha256": ""}
    _refuse_other(site, "start", describe_start(profile.start), describe_start(expected))
    _refuse_other(site, "start", _start_with_hash(profile.start), _start_with_hash(expected))
    _refuse_other(site, "fixed weights", profile.fixed, fixed_hash(first.state, partition))
    return True


def _refuse_other(site: str, what: str, value: Any, expected: Any) -> None:
    if value != expected:
        values = f"{_short(value)} at the site, {_short(expected)} of the job"
        raise FederationError(f"{site} enrols with {what} other than the job's ({values}); {SAME_VERSION}")


def _check_first_weights(site: str, pieces: Mapping[str, Tensor], began: Pieces, *, same: bool) -> None:
    """Refuse weights that differ from the server's initial weights ``began``; FederationError names the piece.

    Without ``same`` initial weights at the server, only the distance of all pieces has a limit.
    """
    if differing := sorted(set(pieces) ^ set(began)):
        raise FederationError(f"{site} enrols with other pieces than its network has, the first is {differing[0]}")
    moved, size = 0.0, 0.0
    for name, value in pieces.items():
        expected = began[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            forms = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (value, expected)]
            raise FederationError(f"{site} enrols with {name} of {forms[0]}; its network has {forms[1]}")
        if value.is_floating_point() and not bool((value.abs() <= LARGEST_WEIGHT).all()):
            limit = f"{LARGEST_WEIGHT:g}"
            raise FederationError(f"{site} enrols with values in {name} that are not finite, or beyond {limit}")
        distance, norm = float((value.double() - expected.double()).norm()), float(expected.double().norm())
        if same and not distance <= NEAR * (1 + norm):
            difference = f"differs by {distance:.3g} from what the job's start gives, whose norm is {norm:.3g}"
            raise FederationError(f"{site} enrols with {name} that {difference}; {SAME_VERSION}")
        moved, size = moved + distance**2, size + norm**2
    if not moved**0.5 <= FAR * (1 + size**0.5):
        difference = f"differ by {moved**0.5:.3g} from a new network's, whose norm is {size**0.5:.3g}"
        raise FederationError(f"{site} enrols with weights that {difference}; look at the file that it begins from")


def outlying_counts(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return the sites that claim far more samples than the other sites, with a sentence for each.

    With fewer than three sites the result is empty: the server cannot know which site is wrong.
    """
    outliers: dict[str, str] = {}
    for site, profile in profiles.items() if len(profiles) > 2 else ():
        others = median_high(other.samples for name, other in profiles.items() if name != site)
        if profile.samples > LARGEST_RATIO * others:
            claim = f"{site} enrols with {profile.samples} training samples"
            outliers[site] = f"{claim}, over {LARGEST_RATIO} times the others' median of {others}"
    return outliers


def _disagreeing(method: Method, enrolments: Mapping[str, Enrolment]) -> dict[str, str]:
    """Return the sites that differ from the majority, with a sentence for each; FederationError without a majority."""
    differing: dict[str, str] = {}
    for what, where, value_of in COMPARED:
        if what == "task" and method.requires.multi_task:
            continue
        values = {site: value_of(enrolment) for site, enrolment in enrolments.items() if site not in differing}
        differing |= _minority(what, {site: value for site, value in values.items() if value != ""}, where)
    return differing


_IN_SITE_FILE = "task and classes in site.yaml"
COMPARED: tuple[tuple[str, str, Callable[[Enrolment], Hashable]], ...] = (
    ("task", _IN_SITE_FILE, lambda enrolment: enrolment.profile.card),
    ("network partition", _IN_SITE_FILE, lambda enrolment: enrolment.partition),
    ("shared pieces", _IN_SITE_FILE, lambda enrolment: enrolment.shapes),
    ("start", "the weights that they begin from", lambda enrolment: _start_with_hash(enrolment.profile.start)),
    ("fixed weights", "the weights that they begin from, which are not trained,", lambda e: e.profile.fixed),
    ("encoder", "text_vectors or text_encoder in site.yaml", lambda enrolment: enrolment.profile.prepared),
    ("text vectors' encoder", "text_vectors or text_encoder in site.yaml", lambda e: _text_encoder(e.profile)),
)
"""Values that sites must have in common: name, place to correct it, and function; empty texts are not compared."""


def _minority(what: str, values: Mapping[str, Hashable], where: str) -> dict[str, str]:
    groups: dict[Hashable, list[str]] = {}
    for site, value in values.items():
        groups.setdefault(value, []).append(site)
    if len(groups) < 2:
        return {}
    most, members = max(groups.items(), key=lambda group: len(group[1]))
    if 2 * len(members) <= len(values):
        names = first_few(map(first_few, groups.values()), " and ")
        raise FederationError(f"{names} differ in their {what} ({_difference(*groups)}); make {where} agree")
    return {
        site: f"{members[0]} and {site} differ in their {what} ({_difference(most, value)}); make {where} agree"
        for site, value in values.items()
        if value != most
    }


def _difference(*values: Hashable) -> str:
    """Show what differs: the first differing entry of tuples of (name, value), else the values."""
    if all(isinstance(value, tuple) for value in values):
        pieces = [dict(value) for value in values]  # type: ignore[call-overload]
        name = min(name for each in pieces for name in each if any(p.get(name) != each[name] for p in pieces))
        return " and ".join(f"{name} {each.get(name, 'missing')}" for each in pieces)
    return " and ".join(map(_short, values))


def _text_encoder(profile: Profile) -> str:
    item = profile.items.get(TEXT_VECTOR)
    return f"{item['encoder']}, {counted(len(item['values']), 'number')}" if item else ""


def _start_with_hash(start: Mapping[str, str]) -> str:
    return f"{start['start']} {start['sha256']}".strip()


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, (str, Card)) else f"{len([*value])} pieces"
    return text if len(text) < 120 else f"{text[:117]}..."


def check_as_before(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> None:
    """Refuse to resume with another task, data, start, FIXED weights or encoder; FederationError names the site."""
    for site, profile in before.items():
        for key, sentence in _CHANGED_PROFILE.items():
            pair = [getattr(now[site], key), getattr(profile, key)]
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


def check_possible(job: Job, method: Method, sites: Sequence[str]) -> None:
    """Refuse a job with too few sites or rounds; raise FederationError."""
    least, has = method.requires, counted(len(sites), "site")
    who = f"{job.method} needs at least"
    if job.rounds < least.min_rounds:
        needed = f"{counted(least.min_rounds, 'round')} with these arguments"
        raise FederationError(f"{who} {needed}, and the job has {job.rounds}; change 'rounds' or the arguments")
    if job.min_sites > len(sites):
        problem = f"min_sites is {job.min_sites}, and the job has {has}"
        raise FederationError(f"job {job.name}: {problem}; add sites, or give a smaller min_sites")
    if len(sites) < least.min_sites:
        needed = f"{counted(least.min_sites, 'site')} with these arguments"
        raise FederationError(f"{who} {needed}, and there are {len(sites)}; add sites or choose another method")


class Admission:
    """The sites that take part in a run: collects the enrolments, and leaves out the sites that do not fit."""

    def __init__(
        self, job: Job, method: Method, sites: Sequence[str], *, least: int = 1, file: Path | None = None
    ) -> None:
        self.sites = list(sites)  # sites that were asked to enrol, then the sites that take part, in order
        self.left_out: dict[str, str] = {}  # reason for each site that was left out
        self.senders: set[str] = set()  # sites that must send their initial weights
        self._enrolments: dict[str, Enrolment] = {}
        self._job, self._method, self._least = job, method, least
        self._file = file  # weights of a ``start: file``
        self._references: dict[Card, tuple[Expected, FirstWeights]] = {}

    @property
    def profiles(self) -> dict[str, Profile]:
        """Profiles of the sites that take part, in order."""
        return {site: self._enrolments[site].profile for site in self.sites if site in self._enrolments}

    def take(
        self, replies: Mapping[str, Reply], failures: Mapping[str, str], *, also: Callable[[str, Reply], None]
    ) -> None:
        """Check parsed replies, and leave out the sites that do not fit.

        ``also`` makes a further check of each site's reply. FederationError: too few sites are left, or sites differ
        without a majority.
        """
        for site, reply in replies.items():
            try:
                enrolment = self.read(site, reply)
                also(site, reply)
                self._enrolments[site] = enrolment
            except FederationError as error:
                self._leave_out({site: str(error)})
        for site in [site for site in self.sites if site not in self._enrolments]:
            self._leave_out({site: f"{site}: {failures[site]}" if site in failures else f"{site} did not enrol"})
        self._leave_out(outlying_counts(self.profiles))
        self._leave_out(_disagreeing(self._method, self._enrolments))
        remaining = [site for site in self.sites if site not in self.left_out]
        if len(remaining) < self._least:
            for reason in [*self.left_out.values()][FEW:]:
                logger.warning("%s", reason)
            raise FederationError(f"{first_few(self.left_out.values(), '; ')}; no round was started")
        for site in self.sites:
            if site in self.left_out:
                logger.warning("%s; the run begins without it", self.left_out[site])
        self.sites = remaining

    def read(self, site: str, reply: Reply) -> Enrolment:
        """Return the checked enrolment of a parsed reply.

        FederationError: the reply does not fit the job, or lacks an item that the method needs.
        """
        method, profile = self._method, profile_of(site, reply.header)
        if refusal := wrong_kind(method, profile.card):
            raise FederationError(f"{site}: {refusal}")
        if missing := sorted(method.requires.items - set(profile.items)):
            raise FederationError(f"{site} enrols without {missing[0]!r}, which {method.name} needs")
        expected, first = self._reference(site, profile.card)
        _refuse_other(site, "network partition", reply.header.get("partition", []), expected.partition.to_json())
        same = _refuse_other_start(site, profile, first, expected.partition, self._job.open_bundle().training.start)
        if site in self.senders:
            began = Expected(method, expected.task, first.state, expected.partition).pieces(Role.GLOBAL, Role.MIXED)
            _check_first_weights(site, reply.pieces, began, same=same)
        elif reply.pieces:
            raise FederationError(f"{site} enrols with weights that nobody asked for")
        if reply.groups:
            raise FederationError(f"{site} enrols with {min(reply.groups)!r}, which nobody asked for")
        shapes = tuple((name, tuple(value.shape)) for name, value in expected.pieces(Role.GLOBAL).items())
        return Enrolment(profile, expected.partition, shapes, dict(reply.pieces))

    def _reference(self, site: str, card: Card) -> tuple[Expected, FirstWeights]:
        """Return the payload and the initial weights of a task, built once."""
        if card not in self._references:
            try:
                bundle = self._job.open_bundle()
                if card.kind not in bundle.tasks:
                    kinds = ", ".join(bundle.tasks)
                    raise ValueError(f"the network of {bundle.name} learns {kinds}, and no {card.kind!r}")
                task = make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs)
                expected = expect(self._job, self._method, task)
            except ValueError as error:
                raise FederationError(f"{site} enrols with a task that does not fit the job: {error}") from error
            try:
                self._references[card] = expected, first_weights(self._job, task, file=self._file)
            except ValueError as error:
                raise FederationError(f"the server cannot build the initial weights: {error}") from error
        return self._references[card]

    def _leave_out(self, reasons: Mapping[str, str]) -> None:
        for site, sentence in reasons.items():
            self._enrolments.pop(site, None)
            self.left_out.setdefault(site, one_line(sentence))

    def initial_models(self) -> tuple[Partition, Models]:
        """Return the partition and the models that a new run starts from.

        The first site's weights are shared. In a job of several tasks, each site starts from its own MIXED pieces.
        """
        first = self._enrolments[self.sites[0]]

        def of_role(pieces: Pieces, role: Role) -> Pieces:
            return {name: pieces[name] for name in first.partition.with_roles(role) if name in pieces}

        own = {site: self._enrolments[site] if self._method.requires.multi_task else first for site in self.sites}
        mixed = {site: of_role(enrolment.pieces, Role.MIXED) for site, enrolment in own.items()}
        return first.partition, Models(of_role(first.pieces, Role.GLOBAL), mixed)
