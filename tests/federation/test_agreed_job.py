"""A run keeps the job that its sites enrolled with, and later messages of the server cannot change it."""

import json
from dataclasses import replace

import pytest

from shared_components.federation.messages import SiteRefusal
from shared_components.federation.messages.parse import parse_request_header
from shared_components.federation.runs.run_folder import ENROLLED, changed_settings
from shared_components.federation.site.agreed_job import PLACE, agreed_job
from tests.federation.conftest import TINY, make_job, same

ONE = ("site-1",)


def with_job(message, **changes):
    return replace(message, header={**message.header, "job": {**message.header["job"], **changes}})


@pytest.fixture
def trained(federate, job_on_toy):
    """Return a federation of FedPer at one site after its first round."""
    return federate(job_on_toy("fedper"), names=ONE).run(until=1)


def own_folder(federation):
    return federation.server.folder / "site-1"


CHANGES = [
    ({"method": "fedavg"}, "method"),
    ({"arguments": {"personal": ["encoder"]}}, "arguments.personal"),
    ({"bundle": "pfedsis"}, "bundle"),
    ({"training": {**TINY, "seed": 7}}, "training.seed"),
    ({"training": {}}, "training.batch_size"),
    ({"tasks": {"segmentation": {"frames": 4}}}, "tasks.segmentation"),
    ({"network": {"personal_shares": [0.5]}}, "network.personal_shares"),
]


@pytest.mark.parametrize("task", ["enrol", "round", "finish"])
def test_another_job_or_place_in_a_message_is_refused_by_the_name_of_its_key(trained, task):
    """Before, FedPer's head left the site bit-equal when a round's message named FedAvg."""
    asked = trained.asked.messages["site-1"]
    asked.header["send_initial"] = True
    for change, key in CHANGES:
        with pytest.raises(SiteRefusal, match=rf"site-1: the server's {task} message has another {key} than the site"):
            trained.answer("site-1", task, with_job(asked, **change))
    for place in ({"number": 1, "numbers": 2}, {"numbers": 2}):
        with pytest.raises(SiteRefusal, match=f"another {next(iter(place))} than the site enrolled with"):
            trained.answer("site-1", task, replace(asked, header={**asked.header, **place}))
    assert not (own_folder(trained) / "round-00001.safetensors").exists()


def test_the_record_is_the_job_and_the_place_and_a_resume_may_change_its_length(trained):
    job, message, root = trained.server.job, trained.asked.messages["site-1"], own_folder(trained).parents[2]
    record = json.loads((own_folder(trained) / ENROLLED).read_text())
    assert record == {"job": job.to_json(), "number": 0, "numbers": 1} and set(PLACE) < message.header.keys()
    assert agreed_job(parse_request_header("round", message.header), root, site="site-1") == job
    longer = with_job(message, rounds=9, min_sites=1, grace_seconds=1, longest_wait_seconds=99)
    assert trained.answer("site-1", "round", longer).header["round"] == 1
    agreed = agreed_job(parse_request_header("round", longer.header), root, site="site-1")
    assert (agreed.rounds, agreed.min_sites) == (9, 1)


def test_a_restarted_site_goes_on_with_its_job_bit_equal(federate, tmp_path, job_on_toy):
    """New processes on both sides, so that only files remember; the record of the enrolment stays as it was."""
    whole = federate(job_on_toy("fedper"), names=ONE, folder=tmp_path / "whole").run()
    killed = federate(job_on_toy("fedper"), names=ONE, folder=tmp_path / "killed").run(until=1)
    record = (own_folder(killed) / ENROLLED).read_bytes()
    resumed = federate(job_on_toy("fedper", rounds=3), names=ONE, folder=tmp_path / "killed", resume=True).run(until=2)
    assert resumed.resumed
    assert (own_folder(resumed) / ENROLLED).read_bytes() == record
    assert same(whole.weights(), resumed.weights())


def test_a_site_that_has_not_enrolled_answers_no_round_and_a_refused_enrolment_is_not_kept(federate, job_on_toy):
    fresh = federate(job_on_toy("fedper"), names=ONE)
    message = fresh.asked.messages["site-1"]
    for task in ("round", "finish"):
        with pytest.raises(SiteRefusal, match=f"site-1: .* has no {ENROLLED}"):
            fresh.answer("site-1", task, replace(message, header={**message.header, "items": {}}))
    with pytest.raises(SiteRefusal, match="nowhere"):
        fresh.answer("site-1", "enrol", with_job(message, arguments={"personal": ["nowhere"]}))
    fresh.run(until=1)


def test_a_damaged_record_or_a_state_without_one_is_refused_with_its_file(trained):
    path, message = own_folder(trained) / ENROLLED, trained.asked.messages["site-1"]
    message.header["send_initial"] = True
    for text in ("", "[]", "{}", '{"job": {"name": "x"}, "number": 0, "numbers": 1}', '{"job": 3}'):
        path.write_text(text)
        with pytest.raises(SiteRefusal, match=f"site-1: {path} cannot be read"):
            trained.answer("site-1", "round", message)
    path.unlink()
    for task in ("enrol", "round"):
        with pytest.raises(SiteRefusal, match=f"{own_folder(trained)} has no {ENROLLED}.* put it back"):
            trained.answer("site-1", task, message)


def test_changed_settings_are_named_one_by_one():
    job = make_job("fedavg", training={"seed": 1, "iterations": 2}, rounds=5)
    before = {**job.to_json(), "training": {"seed": 2, "height": 32, "iterations": 2}, "rounds": 6}
    assert changed_settings(before, job) == ["training.height", "training.seed"]
    older = {key: value for key, value in job.to_json().items() if key != "largest_change"}
    assert changed_settings(job.to_json(), job) == changed_settings(older, job) == []
