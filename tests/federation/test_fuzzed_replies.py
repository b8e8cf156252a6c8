"""Whatever a site sends: it is read in one place, or its site is refused by name and the others go on."""

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared_components.core.method import load_method, method_names
from shared_components.federation.messages import FederationError, Message, RejectedUpdate
from shared_components.federation.messages.schema import REPLY
from shared_components.federation.protocol import parse_answers
from shared_components.federation.runs.store import RECORDS
from shared_components.federation.server.enrolment import Admission
from shared_components.federation.server.published_models import task_of
from shared_components.federation.server.state import RoundLog
from shared_components.federation.server.update_checks import check_extras
from shared_components.reporting.tensorboard import flatten, progress_line
from tests.federation.conftest import SITES, Federation, make_job
from tests.federation.test_hostile_messages import odd_tensors

NAME = "head_global.bias"


@pytest.fixture(scope="module")
def honest(tmp_path_factory, request, narrow_module):
    """Return an enrolled server, and what an honest site answers to each task."""
    scenes = request.getfixturevalue("scenes")
    federation = Federation(make_job("fedavg", rounds=1, min_sites=2), tmp_path_factory.mktemp("r"), scenes, SITES)
    enrol = federation.replies()
    federation.send(enrol)
    return federation.server, {"enrol": enrol["site-2"], "round": federation.replies(["site-2"])["site-2"]}


# what a site can put in the place of a tensor of four numbers, although it is a dense one
ODD = [torch.full((4,), math.nan), torch.zeros(4).long(), torch.zeros(4).half(), torch.zeros(0)]
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
SHARED = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
EXTRAS = {  # a good group of each method that declares one
    "pfedsis": {name: torch.ones_like(value) for name, value in SHARED.items()},
    "fedas": {"value": torch.tensor(1.0)},
    "fedseg": {"mean": torch.eye(2, 8), "present": torch.ones(2)},
    "qfedavg": {"value": torch.tensor(1.0)},
}


@pytest.mark.filterwarnings("ignore")  # torch warns of the dtypes themselves
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", EXTRAS)
def test_an_extra_of_a_dtype_that_nobody_measures_in_is_its_sites_fault(method, dtype):
    assert sorted(EXTRAS) == [name for name in method_names() if load_method(name).local.extras]  # all are tried
    declared = load_method(method).local.extras
    (group,) = declared
    try:
        sent = {name: value.to(dtype) for name, value in EXTRAS[method].items()}
    except (RuntimeError, NotImplementedError):  # a quantised or packed dtype: torch makes no plain tensor with it
        sent = {name: torch.empty(value.shape, dtype=dtype) for name, value in EXTRAS[method].items()}
    if dtype in (torch.float32, torch.float64):
        check_extras({group: sent}, declared, SHARED, method=method)
    else:
        with pytest.raises(RejectedUpdate, match=f"its {group}: .* is {dtype}; a float32 or float64 is due"):
            check_extras({group: sent}, declared, SHARED, method=method)


@pytest.mark.parametrize("sent", [None, [], "message", {}, 4], ids=repr)
def test_what_is_no_message_refuses_its_site(sent):
    answers = parse_answers("round", {"site-2": sent})
    assert answers.replies == {} and "no message of this job" in answers.failures["site-2"]


# ---- the proof by fuzzing

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, -1, 0])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["site-2", "segmentation", "global", "\x1b[31m", "\ud800", "a\nb", "‮"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(["mean", "dice", "total", "kind"]), inner, max_size=4)
    ),
    max_leaves=12,
)
tensors = st.sampled_from([*ODD, *(bad for bad, _ in odd_tensors().values())]) | plain
pieces = st.dictionaries(st.sampled_from([NAME, "w"]) | st.text(max_size=6), tensors, max_size=4)
keys = st.sampled_from([*REPLY, "odd"])
quick = settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@quick
@given(
    task=st.sampled_from(["enrol", "round", "unmask", "finish"]),
    changes=plain | st.dictionaries(keys, plain, max_size=3),
    given_pieces=plain | pieces,
    groups=plain | st.dictionaries(st.sampled_from(["model", "sensitivity"]) | st.text(max_size=5), pieces | plain),
    keep=st.booleans(),
)
def test_nothing_that_a_site_can_send_raises_past_the_place(honest, task, changes, given_pieces, groups, keep):
    """A reply that is not refused can be checked, recorded, shown and written without another error."""
    server, known = honest
    reply = known.get(task, Message({"round": 1, "metrics": {}, "final": {}}))
    header = {**reply.header, **changes} if isinstance(changes, dict) else changes
    body = {**reply.pieces, **given_pieces} if keep and isinstance(given_pieces, dict) else given_pieces
    answers = parse_answers(task, {"site-2": Message(header, body, groups)})
    assert set(answers.replies) | set(answers.failures) == {"site-2"}
    for read in answers.replies.values():
        _use(server, task, read)


@quick
@given(key=keys, value=plain, task=st.sampled_from(["enrol", "round", "unmask", "finish"]))
def test_one_changed_value_never_raises_past_the_place(honest, key, value, task):
    server, known = honest
    reply = known.get(task, Message({"round": 1, "metrics": {}, "final": {}}))
    answers = parse_answers(task, {"site-2": Message({**reply.header, key: value}, reply.pieces)})
    for read in answers.replies.values():
        _use(server, task, read)


def _use(server, task, read):
    """Do with a reply that was read what the server does with it."""
    journal = RoundLog(server.folder / RECORDS, server.upload)
    record = journal.note("site-2", read, Message({}, {}), server.state.partition, round=server.state.round)
    metric = task_of(server.job, server.state.profiles["site-2"].card).metrics[0]
    line = progress_line(record, rounds=2, seconds_left=None, metric=metric)
    assert line.isprintable() and all(map(math.isfinite, flatten(record).values()))
    json.dumps({**record, "final": read.header.get("final")}).encode()
    try:
        if task == "round":
            server.check_update("site-2", read)
        elif task == "enrol":
            admission = Admission(server.job, server.method, SITES)
            admission.senders = {"site-2"}
            admission.read("site-2", read)
    except (RejectedUpdate, FederationError) as refusal:
        assert str(refusal)
