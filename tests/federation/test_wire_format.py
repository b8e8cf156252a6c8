"""Tensors of messages: in bfloat16 half the bytes and nothing lost by rounding, on the disk the same bits."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.method import StatelessStart, load_method, method_names
from shared_components.core.partition import Role
from shared_components.core.task import make_task
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import answer, run_together
from shared_components.federation.messages import (
    BF16,
    FLOAT32,
    FederationError,
    Job,
    Message,
    SiteRefusal,
    stored,
    total_bytes,
    wire_format,
)
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.messages.stored import Inbox, StoredPieces
from shared_components.federation.privacy.ledger import ledgers, read_ledger
from shared_components.federation.runs.run_folder import server_files
from shared_components.federation.runs.store import hash_of
from shared_components.federation.setup.allowed_payload import expect
from shared_components.federation.site.disclosure import what_leaves
from shared_components.flare.outgoing_check import check_reply
from tests.federation.conftest import NOT_TINY, SITES, Federation, make_job, rewritten, same

CLASSES = ("background", "shaft", "wrist", "clasper")
STEP = 2.0**-7  # from 1 to the next number of bfloat16


def test_numbers_are_rounded_to_nearest_and_ties_to_even_and_overflow_is_not_hidden():
    values = torch.tensor([[1.0, 1 + STEP / 4, 1 + STEP / 2, 1 + 3 * STEP / 2, -1 - 0.6 * STEP, 1e-40]])
    rounded = wire_format.unpack(wire_format.pack({"w": values}, BF16), BF16)["w"]
    assert rounded.dtype == torch.float32
    assert rounded[0, :5].tolist() == [1.0, 1.0, 1.0, 1 + 2 * STEP, -1 - STEP]
    assert rounded[0, 5] == pytest.approx(1e-40, rel=0.01)  # subnormal numbers stay
    largest = {"w": torch.full((1, 1), 3.4e38)}
    assert torch.isinf(wire_format.pack(largest, BF16)["w"]).all()


def test_what_has_one_axis_no_float32_or_no_option_travels_exactly():
    exact = {
        "bias": torch.tensor([1 + 2.0**-20]),
        "running_var": torch.tensor([1e-3, 7.123456]),
        "num_batches_tracked": torch.tensor(2**40 + 1),
        "scale": torch.tensor(1.2345678),
        "counts": torch.tensor([[2**24 + 1]]),
        "energy": torch.tensor([[1 + 2.0**-40]], dtype=torch.float64),
    }
    assert same(wire_format.pack(exact, BF16), exact)
    assert same(wire_format.pack_change(exact, {name: value * 0 for name, value in exact.items()}, BF16), exact)
    assert same(dict(wire_format.unpack_change(exact, {n: v * 0 for n, v in exact.items()}, BF16)), exact)
    tensors = {"w": torch.ones(2, 2)}
    assert wire_format.pack(tensors, FLOAT32)["w"] is tensors["w"]
    assert wire_format.unpack(tensors, FLOAT32) is tensors
    assert wire_format.unpack_change(tensors, tensors, FLOAT32) is tensors


def test_a_change_below_the_step_of_its_weight_arrives_which_rounded_weights_would_lose():
    held = {"w": torch.tensor([[1.0, -3.0, 100.0, 0.0]])}
    received = wire_format.unpack(wire_format.pack(held, BF16), BF16)
    change = torch.tensor([[1e-4, -1e-4, 1e-3, 1e-9]])
    trained = {"w": received["w"] + change}
    assert torch.equal(trained["w"].bfloat16().float()[0, :3], received["w"][0, :3])  # as weights: nothing moves
    update = wire_format.pack_change(trained, received, BF16)
    moved = wire_format.unpack_change(update, held, BF16)["w"] - held["w"]
    assert torch.allclose(moved, change, rtol=2**-7, atol=1e-5)  # 1e-5: float32's own step at 100
    update = {"w": torch.ones(1, 2, dtype=torch.bfloat16)}
    assert wire_format.unpack_change(update, {"w": torch.ones(3, 2)}, BF16)["w"].shape == (1, 2)


@pytest.mark.parametrize(
    "value, words",
    [
        (torch.ones(2, 2), "w is torch.float32; the job's wire is bf16, so torch.bfloat16 is due"),
        (torch.ones(2, dtype=torch.bfloat16), "w is torch.bfloat16; .* so torch.float32 is due"),
    ],
)
def test_a_tensor_in_another_format_is_refused_by_name(value, words):
    for open_ in (wire_format.unpack, lambda tensors, wire: wire_format.unpack_change(tensors, {}, wire)):
        with pytest.raises(ValueError, match=words):
            open_({"w": value}, BF16)


def pushed(work):
    """Move every number by a 3,000th of itself, in place of training: less than bfloat16's step."""
    for value in work.network.state_dict().values():
        if value.is_floating_point():
            value.mul_(1 + 1 / 3000 * (1 + work.context.site))
    return {"pushed": 0.0}


def test_many_small_rounds_end_where_those_of_float32_do(play, federate, job_on_toy, tmp_path):
    """Three sites push by 1/3000, 2/3000 and 3/3000: float32 grows by about 2/3000 a round."""
    play(local_update=pushed)
    began, ends = {}, {}
    for wire in (FLOAT32, BF16):
        federation = federate(job_on_toy("fedavg", rounds=6, wire=wire), folder=tmp_path / wire).enrol()
        began = {name: value.clone() for name, value in federation.server.state.models.shared.items()}
        ends[wire] = federation.run().server.state.models.shared
    grown = 0
    for name, value in ends[FLOAT32].items():
        if value.is_floating_point():
            moved, error = (value - began[name]).abs(), (ends[BF16][name] - value).abs()
            # the weight and its change are rounded once a round, by 2^-9 at most; 1e-6: float32's own steps
            assert bool((error <= moved * 2**-7 + began[name].abs() * 1e-6).all()), name
            grown += int((moved > 0).sum())
    assert grown > 100


def test_half_the_bytes_are_sent_as_the_report_says_and_the_filter_passes_no_other_format(federate, scenes):
    job = make_job(rounds=1, min_sites=1, wire=BF16)
    federation = federate(job, names=SITES[:2]).enrol()
    question = parse_request("round", federation.asked.messages["site-1"])
    reply, site = federation.replies(["site-1"])["site-1"], load_site(scenes[0], name="site-1")
    check_reply(reply, question, site)
    name, sensitivity = next(n for n, v in reply.pieces.items() if v.dim() > 1), reply.groups["sensitivity"]
    for bad in (
        {"pieces": {**reply.pieces, name: reply.pieces[name].float()}},
        {"groups": {"sensitivity": {**sensitivity, name: sensitivity[name].float()}}},
    ):
        with pytest.raises(ValueError, match=r"is torch.float32; .*torch.bfloat16 .*; nothing was sent"):
            check_reply(dataclasses.replace(reply, **bad), question, site)

    federation.send({"site-1": reply}, {"site-2": "absent"})
    due = expect(job, load_method(job.method, **job.arguments), make_task("segmentation", classes=CLASSES))
    sent, report = federation.server.records[0]["bytes"], what_leaves(job, due)
    whole, half = ({role: counted(due.pieces(role), size) for role in (Role.GLOBAL, Role.MIXED)} for size in (4, 2))
    assert sent == {"up": {**half, "sensitivity": half["global"]}, "down": half}
    assert all(half[role] < 0.53 * whole[role] for role in half)
    assert report.bytes_of("round") == sum(sent["up"].values())
    assert report.bytes_of("enrol") == sum(whole.values())


def counted(pieces, size):
    """Return the bytes of pieces, ``size`` for each number of two axes or more; all of pfedsis's are float32."""
    return sum((size if value.dim() > 1 else 4) * value.numel() for value in pieces.values())


def test_the_first_and_the_final_weights_are_exact(federate, job_on_toy):
    federation = federate(job_on_toy("fedavg", rounds=1, wire=BF16))
    enrolled = federation.replies()
    assert {value.dtype for value in enrolled["site-1"].pieces.values() if value.dim() > 1} == {torch.float32}
    federation.send(enrolled)
    federation.run()
    shared = federation.server.state.models.shared
    assert same(federation.asked.messages["site-2"].pieces, shared)
    federation.finish()
    last = next(record for record in federation.server.records if record["kind"] == "site" and record["round"] == 1)
    assert last["bytes"]["down"] == {"global": total_bytes(shared)}


def one_of_each_kind_of_message():
    """Return a method for each kind of message that sites send and receive, on a small network where there is one."""
    kinds = {}
    for name in ("fedavg", "ditto", *sorted(method_names(), key=lambda name: (name in NOT_TINY, name))):
        method = load_method(name)
        sent = frozenset(
            part for part in ("extras", "items", "update", "condition_on_site") if vars(method.local)[part]
        )
        roles = frozenset(role for role in Role if role.name in method.about.partition)
        kinds.setdefault((sent, roles, method.server.update is not None), name)
    return sorted({*kinds.values()} - {"fedavg", "ditto"})


@pytest.mark.parametrize(
    "method", ["fedavg", "ditto", *(pytest.param(one, marks=pytest.mark.slow) for one in one_of_each_kind_of_message())]
)
def test_what_methods_send_travels_in_bfloat16_and_resumes(federate, job_on_toy, tmp_path, method):
    resumes(federate, job_on_toy(method, wire=BF16), tmp_path, SITES[:2] if method in NOT_TINY else SITES)


def resumes(federate, job, tmp_path, names):
    straight = federate(job, folder=tmp_path / "a", names=names).run_leaving(tmp_path / "b")
    assert not any(record.get("rejected") for record in straight.server.records)
    again = federate(job, folder=tmp_path / "b", resume=True, names=names).run()
    assert again.resumed and same(straight.weights(), again.weights())
    assert all(value.dtype != torch.bfloat16 for value in again.weights().values())


def test_updates_that_wait_on_the_disk_give_the_same_bits(federate, job_on_toy, tmp_path, monkeypatch):
    job = job_on_toy("fedavg", wire=BF16)
    in_memory = federate(job, folder=tmp_path / "a").run().weights()
    monkeypatch.setattr(stored, "HELD", 0)
    monkeypatch.setattr(stored, "SMALL", 0)
    on_disk = federate(job, folder=tmp_path / "b").enrol()
    while on_disk.asked.task == "round":
        on_disk.send({s: on_disk.server.inbox.keep(s, r) for s, r in on_disk.replies().items()})
    assert same(in_memory, on_disk.weights())


def test_another_format_than_the_jobs_is_refused_by_the_site_and_leaves_a_site_out(federate, job_on_toy):
    federation = federate(job_on_toy("fedavg", rounds=1, min_sites=2, wire=BF16)).enrol()
    message = federation.asked.messages["site-1"]
    exact = dataclasses.replace(message, pieces=dict(federation.server.state.models.shared))
    with pytest.raises(SiteRefusal, match=r"site-1: .* is torch.float32; the job's wire is bf16"):
        federation.answer("site-1", "round", exact)
    replies = federation.replies()
    whole = {name: value.float() for name, value in replies["site-2"].pieces.items()}
    (rejected,) = federation.send({**replies, "site-2": Message(replies["site-2"].header, whole)})["rejected"]
    assert rejected["site"] == "site-2"
    assert "is torch.float32; the job's wire is bf16, so torch.bfloat16 is due" in rejected["reason"]


def test_one_job_keeps_one_known_format_without_secure_sums(federate, job_on_toy):
    federate(job_on_toy("fedavg")).run(until=1)
    with pytest.raises(FederationError, match="ran with other settings of wire"):
        federate(job_on_toy("fedavg", wire=BF16), resume=True)
    with pytest.raises(ValueError, match=r"job try: wire is bf16, which secure_sums do not take; write wire: float"):
        Job("try", "pvt_fpn", "fedavg", secure_sums={"threshold": 2}, wire=BF16)
    with pytest.raises(ValueError, match=r"job try: wire is 'fp16'; use one of float32, bf16"):
        Job("try", "pvt_fpn", "fedavg", wire="fp16")


def test_noise_goes_with_it_and_the_ledger_holds_the_hash_of_what_was_sent(scenes, job_on_toy, tmp_path):
    files = [rewritten(path, tmp_path / path.parent.name) for path in scenes]
    job = job_on_toy("fedavg", rounds=1, privacy={"clip": 1e-2, "noise_multiplier": 1.0}, wire=BF16)
    federation = Federation(job, tmp_path / "runs", files, SITES).enrol()
    asked, replies = federation.asked, federation.replies()
    site, reply = load_site(files[0], name="site-1"), replies["site-1"]
    assert {value.dtype for value in reply.pieces.values() if value.dim() > 1} == {torch.bfloat16}
    assert read_ledger(ledgers(site)[0])[-1].sha256 == hash_of(reply.pieces)
    check_reply(reply, parse_request("round", asked.messages["site-1"]), site)
    again = federation.answer("site-1", "round", asked.messages["site-1"])
    assert same(again.pieces, reply.pieces) and len(read_ledger(ledgers(site)[0])) == 1
    assert not federation.send(replies)["rejected"]


def message_of(**tensors):
    return Message({}, tensors)


def test_a_round_stays_in_memory_up_to_a_bound_and_goes_to_the_disk_beyond(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 20)
    monkeypatch.setattr(stored, "SMALL", 0)
    inbox, given = Inbox(tmp_path / "updates"), {"w": torch.arange(4.0), "steps": torch.tensor(3)}
    first, second = message_of(w=given["w"]), message_of(**given)
    assert inbox.keep("site-1", first).pieces is first.pieces and not (tmp_path / "updates").exists()
    kept = inbox.keep("site-2", second).pieces
    assert isinstance(kept, StoredPieces) and list(kept) == list(given) and len(kept) == 2 and same(dict(kept), given)
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["site-2.safetensors"]
    inbox.empty()
    assert not (tmp_path / "updates").exists()
    assert inbox.keep("site-1", first).pieces is first.pieces


def test_a_read_tensor_outlives_its_file_and_groups_are_stored_too(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 0)
    monkeypatch.setattr(stored, "SMALL", 0)
    inbox = Inbox(tmp_path / "updates")
    value = inbox.keep("site-1", message_of(w=torch.arange(9.0))).pieces["w"]
    inbox.empty()
    assert value.tolist() == list(range(9))
    groups = {"../model": {"w": torch.ones(3), "empty": torch.ones(0, 2)}, "flags": {"b": torch.tensor([True, False])}}
    kept = inbox.keep("site-1", Message({}, {}, groups)).groups
    assert all(isinstance(kept[name], StoredPieces) and same(dict(kept[name]), groups[name]) for name in groups)
    assert len([*(tmp_path / "updates").rglob("*.safetensors")]) == 2  # whatever the names of the groups


METHODS = [
    ("fedavg", {"swa": {"start": 0}}), ("fedmedian", {}), ("krum", {}), ("norm_bound", {}), ("qfedavg", {}),
    ("mat_fl", {}), ("fedhca2", {}), ("centralised", {}),
    pytest.param("feddp", {"fine_tune_from": 1}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("method, arguments", METHODS)
def test_stored_updates_give_the_bits_of_those_in_memory(job_on_toy, scenes, tmp_path, monkeypatch, method, arguments):
    stateless = isinstance(load_method(method, **arguments).server.aggregator, StatelessStart)
    job = job_on_toy(method, arguments=arguments, rounds=1 if stateless else 2)  # each of its rounds is the first
    sites = dict(zip(SITES, scenes, strict=True))

    def run(folder):
        server = run_together(job, sites, tmp_path / folder)
        _, tensors, _ = server_files(server.folder).load()
        given = load_file(server.folder / "server" / "model.safetensors")
        return {**tensors, **{f"outsider/{name}": value for name, value in given.items()}}

    in_memory = run("memory")
    monkeypatch.setattr(stored, "HELD", 0)
    monkeypatch.setattr(stored, "SMALL", 0)
    on_disk = run("disk")
    assert same(in_memory, on_disk)
    assert not list((tmp_path / "disk").rglob("updates"))


def test_what_a_killed_server_has_left_is_removed_when_its_round_begins_again(federate, toy_bundle, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 0)
    monkeypatch.setattr(stored, "SMALL", 0)
    first = federate(make_job("fedavg")).enrol()
    answer(first.asked, first.sites, keep=first.server.inbox.keep)
    assert len(list((first.server.folder / "server" / "updates").iterdir())) == 3
    again = federate(make_job("fedavg"), resume=True).enrol()
    assert not (again.server.folder / "server" / "updates").exists()
