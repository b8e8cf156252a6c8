"""Schema of the plain values in messages: type, range, task and unit."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from shared_components.common.sanitise import LONGEST_NAME
from shared_components.common.schema import Schema, check_keys, check_values, fits, short_repr
from shared_components.core.partition import Partition, Role
from shared_components.core.training_settings import MOST_ROUNDS, Start
from shared_components.data.profile_items import ITEMS, EncoderName, check_item
from shared_components.federation.messages.job import MOST_SITES
from shared_components.federation.secure_sums.job_section import HEADER, KEY, PublicKey

MOST_SCORES = 2_000  # numbers in all metrics of a reply
NOT_METRICS = frozenset({"frames", "policy"})  # other entries of scores
TASKS, ENROL = ("enrol", "round", "unmask", "finish"), ("enrol",)

Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]  # class, metric or loss term
TensorName = Annotated[str, Meta(min_length=1, max_length=400)]
Names = Annotated[list[Name], Meta(max_length=1_000)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]  # sums stay within the range of floats
Positive = Annotated[float, Meta(ge=0, le=1e30)]
Terms = Annotated[dict[Name, Number], Meta(max_length=100)]
Durations = Annotated[dict[Name, Positive], Meta(max_length=100)]
Samples = Annotated[int, Meta(ge=1, le=10**9)]
Row = Annotated[int, Meta(ge=0, le=10**9)]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}\Z", description="it is a hash, or empty")]
Aside = Number | bool | Name | None
Scores = Annotated[
    dict[Name, Aside | dict[Name, Aside | dict[Name, Aside]]],
    Meta(max_length=100, description="it is a table of scores, of 100 metrics at most"),
]


class CardForm(Schema, frozen=True):
    """Form of `core.card.Card`."""

    kind: Name
    outputs: Names
    inputs: Names
    frames: Annotated[int, Meta(ge=1, le=10_000)]


class PieceForm(Schema, frozen=True):
    """Form of `core.partition.Piece`."""

    tensor: TensorName
    role: Role
    start: Row | None = None
    stop: Row | None = None
    layer: Annotated[str, Meta(max_length=400)] = ""


Pieces = Annotated[list[PieceForm], Meta(max_length=50_000)]


class StartForm(Schema, frozen=True):
    """Kind of the initial weights, and hash of their file."""

    start: Start
    sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class SumsRequest(Schema, frozen=True):
    """Section of a secure sum in a server's message."""

    nonce: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z", description="it is 32 hexadecimal digits")]
    sites: Annotated[list[str], Meta(max_length=MOST_SITES)]  # sites in the sum
    total: Annotated[int, Meta(ge=1, le=10**13)] | None = None  # samples of all sites in the run
    keys: dict[str, PublicKey] | None = None  # of all sites in the run


@dataclass(frozen=True)
class ReplyField:
    """Declaration of a plain value in a site's reply."""

    kind: Any  # type and range
    tasks: Collection[str]  # tasks whose replies may have it
    form: str = ""  # description for the report of what leaves a site; empty: the report has another entry for it
    withheld: str = ""  # name that keeps it at the site, in `withhold` of site.yaml; empty: the federation needs it
    with_noise: bool = False  # also sent in a job with noise, where it does not depend on the data


REPLY: Mapping[str, ReplyField] = {
    "round": ReplyField(Annotated[int, Meta(ge=0, lt=10**9)], TASKS, with_noise=True),
    "samples": ReplyField(Samples, ("enrol", "round"), "one number: training samples", with_noise=True),
    "card": ReplyField(CardForm, ENROL, "task, class names, kinds of input", with_noise=True),
    "items": ReplyField(Annotated[dict[str, Any], Meta(max_length=len(ITEMS))], ENROL, with_noise=True),
    "partition": ReplyField(Pieces, ENROL, "name, rows and role of every piece of the network", with_noise=True),
    "fixed": ReplyField(Hash, ENROL, "a hash of the weights that are not trained", with_noise=True),
    "prepared": ReplyField(EncoderName, ENROL, "the name of the text encoder, if there is one", with_noise=True),
    "start": ReplyField(StartForm, ENROL, "the hash of the file that the weights begin from", with_noise=True),
    KEY: ReplyField(PublicKey, ENROL, "a public key of the site's, for this run's secure sums"),
    "loss": ReplyField(Terms, ("round",), "a mean of each loss term", "loss"),
    "metrics": ReplyField(Scores, ("round", "finish"), "scores on validation, of each class", "scores"),
    "final": ReplyField(Scores, ("finish",), "scores on validation at full resolution, of each class", "scores"),
    "seconds": ReplyField(Durations, TASKS, "how long the parts of the work took", "seconds"),
    "memory_mb": ReplyField(Positive | None, TASKS, "one number: the most memory used", "memory"),
}
"""Plain values of a reply; a site may leave out values that it withholds."""

RECORDED = ("samples", "loss", "metrics", "seconds", "memory_mb")
"""Reply fields saved in the run log."""
PROFILE = ("samples", "card", "items", "fixed", "prepared", "start")
"""Reply fields of a site's profile, all required at enrolment."""
PUBLISHED_MODELS = ("model", "result")
"""Groups with a site's whole model at the finish, named like the items of `publish` that allow them."""


def leaves_with_noise(name: str) -> bool:
    """Return whether a reply's value leaves the site in a job with noise."""
    return name in REPLY and REPLY[name].with_noise


PLACE: dict[str, Any] = {
    "numbers": Annotated[int, Meta(ge=1, le=MOST_SITES)],
    "number": Annotated[int, Meta(ge=0, lt=MOST_SITES)],
    "sites": Annotated[int, Meta(ge=1, le=MOST_SITES)],
    "index": Annotated[int, Meta(ge=0, lt=MOST_SITES)],
    "round": Annotated[int, Meta(ge=0, le=MOST_ROUNDS)],
}
"""The round, and a site's `Place`."""

REQUEST: Mapping[str, Any] = {
    "job": Any,  # `Job.from_json` checks it
    "run": str,
    **PLACE,
    "send_initial": bool,
    "items": dict[str, Annotated[list[Any], Meta(max_length=MOST_SITES)]],
    "answered": PLACE["round"] | None,
    "pool": Annotated[list[str], Meta(max_length=MOST_SITES)],
    HEADER: SumsRequest,
}
"""Plain values of a server's message."""
REQUIRED = {"enrol": "send_initial", "round": "items", "unmask": HEADER, "finish": "items"}
"""Required value of each task's message, besides job, run and place."""


def check_reply_header(task: str, header: object, who: str, *, required: Collection[str] = ()) -> dict[str, Any]:
    """Return the plain values of a reply to a task; ValueError names the first that is malformed or missing.

    ``who`` begins the error message.
    """
    kinds = {name: field.kind for name, field in REPLY.items() if task in field.tasks}
    values = check_keys(kinds, header, who, required)
    check_values(kinds, values, who)
    for name in set(values) - {"items", KEY}:
        if bad := next((text for text in _texts(values[name]) if not text.isprintable()), ""):
            raise ValueError(f"{who}: {name} has the text {short_repr(bad)}; a name has no control characters")
    for name, item in values.get("items", {}).items():
        check_item(name, item)
    for name, aside in (("metrics", ()), ("final", ("site", "split"))):
        scores = {key: item for key, item in values.get(name, {}).items() if key not in aside}
        _check_scores(scores, f"{who}: {name}")
    if len(values.get(KEY, {})) == 2:
        raise ValueError(f"{who}: {KEY} has a signature without a certificate, or the other way round")
    pieces = values.get("partition", [])
    if len({piece.name for piece in Partition.from_json(pieces)}) < len(pieces):
        raise ValueError(f"{who}: partition names a piece twice")
    return dict(values)


def check_request_header(task: str, header: object, who: str) -> dict[str, Any]:
    """Return the plain values of a server's message; ValueError names the first that is malformed or missing."""
    values = check_keys(REQUEST, header, who, ("job", "run", *PLACE, REQUIRED[task]))
    check_values(REQUEST, values, who)
    for name, most in (("number", "numbers"), ("sites", "numbers"), ("index", "sites")):
        if not values[name] <= values[most] - (name != "sites"):
            raise ValueError(f"{who}: {name} is {values[name]}, and {most} is {values[most]}; it is a smaller number")
    for name, of_sites in values.get("items", {}).items():
        for item in of_sites:
            check_item(name, item)
    return dict(values)


def _check_scores(scores: Mapping[str, Any], where: str) -> None:
    """Check that every metric has numbers, and that there are not too many."""
    for name, item in scores.items():
        is_table = isinstance(item, Mapping)
        if (not is_table and name not in NOT_METRICS) or (
            is_table and "mean" in item and not fits(item, dict[str, Number | None])
        ):
            raise ValueError(f"{where}.{name} is {short_repr(item)}; a metric has a number, or null, of each output")
    if (count := _count(scores)) > MOST_SCORES:
        raise ValueError(f"{where} has {count} numbers; at most {MOST_SCORES} are read")


def _count(value: object) -> int:
    return sum(map(_count, value.values())) if isinstance(value, Mapping) else 1


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value if isinstance(value, list) else (*value, *value.values()):
            yield from _texts(item)
