"""The ledger of noisy updates, which outlives runs, and the budget that a site allows."""

import json
import shutil

import pytest

from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.privacy.gaussian import epsilon
from shared_components.federation.privacy.ledger import Entry, enter, ledgers
from shared_components.federation.setup.limits import FILE, Demand, limits_of
from shared_components.federation.site.noisy_updates import Noisy
from tests.federation.privacy.conftest import entries, plain_job, private_job

pytestmark = pytest.mark.usefixtures("toy_bundle")


def test_the_account_outlives_runs_jobs_and_folders(federate, scenes, tmp_path):
    federate(private_job(), folder=tmp_path / "a").run().finish()
    shutil.rmtree(tmp_path / "a")
    other = private_job("fedper", privacy={"clip": 1.0, "noise_multiplier": 2.0}, rounds=1)
    federation = federate(other, folder=tmp_path / "b").run()
    record = json.loads((federation.server.folder / "site-1" / "privacy.json").read_text())
    assert record["updates"] == 1 and record["epsilon"] == pytest.approx(epsilon({2.0: 1}, 1e-5))
    assert record["epsilon_of_all_jobs"] == pytest.approx(epsilon({1.0: 2, 2.0: 1}, 1e-5))
    assert [entry.job for entry in entries(scenes[0])] == ["test-fedavg", "test-fedavg", "test-fedper"]


def test_a_site_that_adds_anothers_frames_spends_of_both(scenes):
    scenes[0].write_text(scenes[0].read_text() + f"\nalso_trains_on: {scenes[1]}\n")
    site = load_site(scenes[0])
    enter(site, Entry("job", "run", 0, 1.0, 0.5, True, "0" * 64, "now"))
    assert ledgers(site) == [path.with_name("site.privacy.jsonl") for path in scenes[:2]]
    assert entries(scenes[0]) == entries(scenes[1]) != []


@pytest.mark.parametrize("asked_before", [False, True], ids=["before the round", "during the training"])
def test_a_budget_that_another_job_has_spent_meanwhile_is_not_overspent(federate, scenes, monkeypatch, asked_before):
    """Nothing is entered then, and nothing sent."""
    demand(scenes[0], f"privacy: {{epsilon: {epsilon({1.0: 2}, 1e-5) * 1.001}}}")
    federation = federate(private_job()).run(until=1)
    if asked_before:
        monkeypatch.setattr(Noisy, "refuse_beyond_budget", lambda noisy, rounds: None)
    enter(load_site(scenes[0]), Entry("other", "run", 0, 1.0, 0.5, True, "0" * 64, "now"))
    with pytest.raises(SiteRefusal, match="1 more update would spend"):
        federation.replies()
    assert len(entries(scenes[0])) == 2


@pytest.mark.parametrize("text", ["{", "[]\n", '{"job": "a"}\n', "\x00\n", "{}\n"])
def test_a_damaged_account_is_refused_and_no_smaller_one_taken(federate, scenes, text):
    scenes[0].with_name("site.privacy.jsonl").write_text(text)
    with pytest.raises(FederationError, match=r"site.privacy.jsonl: the account of what was sent .* is damaged"):
        federate(private_job()).enrol()


def test_an_account_that_forgets_this_run_is_refused(federate, scenes):
    federation = federate(private_job(rounds=3), names=("site-1",)).run(until=1)
    scenes[0].with_name("site.privacy.jsonl").unlink()
    with pytest.raises(SiteRefusal, match=r"round 1 was sent, and .* does not account for it"):
        federation.replies()


def test_an_account_that_cannot_be_written_is_refused_before_the_first_round(federate, scenes):
    scenes[0].with_name("site.privacy.lock").mkdir()
    with pytest.raises(FederationError, match=r"site.privacy.jsonl: the account .* cannot be written"):
        federate(private_job()).enrol()


def demand(path, text):
    path.with_name(FILE).write_text(text)


@pytest.mark.parametrize(
    "text, job, words",
    [
        ("privacy: {noise_multiplier: 1}", plain_job(), "the job has no 'privacy', and the site demands noise"),
        ("privacy: {clip: 1}", plain_job(), "the job has no 'privacy'"),
        ("privacy: {noise_multiplier: 1.5}", private_job(), r"privacy.noise_multiplier is 1.0, .* at least 1.5"),
        ("privacy: {clip: 0.4}", private_job(), r"privacy.clip is 0.5, .* at most 0.4"),
        ("privacy: {epsilon: 12}", private_job(), r"2 more updates would spend .* and it allows 12 .*; 0 is spent"),
    ],
)  # fmt: skip
def test_a_job_with_less_than_a_site_demands_is_refused_at_enrolment(federate, scenes, text, job, words):
    demand(scenes[0], text)
    with pytest.raises(FederationError, match=f"site site-1: .*{words}") as refused:
        federate(job).enrol()
    assert str(scenes[0].with_name(FILE)) in str(refused.value)


def test_as_much_as_a_site_demands_is_taken_and_then_no_more(federate, scenes, tmp_path):
    budget = epsilon({1.0: 2}, 1e-5)
    demand(scenes[0], f"privacy: {{noise_multiplier: 1, clip: 0.5, epsilon: {budget * 1.001}}}")
    federate(private_job(), folder=tmp_path / "a").run().finish()
    with pytest.raises(FederationError, match="site site-1: 1 more update would spend"):
        federate(private_job(rounds=1), folder=tmp_path / "b").enrol()


def test_a_resumed_run_needs_no_more_than_what_is_left(federate, scenes, tmp_path):
    demand(scenes[0], f"privacy: {{epsilon: {epsilon({1.0: 2}, 1e-5) * 1.001}}}")
    federate(private_job(), folder=tmp_path / "a").run(until=1)
    again = federate(private_job(), folder=tmp_path / "a", resume=True)
    assert again.run().server.state.round == 2
    assert limits_of(load_site(scenes[0])).privacy == Demand(epsilon=epsilon({1.0: 2}, 1e-5) * 1.001)


@pytest.mark.parametrize(
    "text, words",
    [
        *((f"privacy: {text}", f"privacy is {value}") for text, value in (("3", 3), ("{}", "{}"), ("", None))),
        ("privacy: {noise: 1}", "unknown key 'privacy.noise'"),
        ("privacy: {epsilon: .nan}", "privacy.epsilon is nan"),
        ("privacy: {epsilon: 0}", "privacy.epsilon is 0"),
        ("privacy: {noise_multiplier: '1'}", "privacy.noise_multiplier is '1'"),
        ("privacy: {noise_multiplier: yes}", "privacy.noise_multiplier is True"),
        ("privacy: {clip: .inf}", "privacy.clip is inf"),
        ("privacy: {delta: 0.5}", "privacy.delta is 0.5"),
    ],
)
def test_a_wrong_demand_is_refused(scenes, text, words):
    demand(scenes[0], text)
    with pytest.raises(SiteError, match=words):
        limits_of(load_site(scenes[0]))
