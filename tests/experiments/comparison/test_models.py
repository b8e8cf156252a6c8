"""The best of all rounds: the round of each number, also after an interruption, and in the table."""

import json
from dataclasses import replace

import pytest

from shared_components.experiments.comparison import run as carrying
from shared_components.experiments.comparison.fl_endovit_presets import PRETRAINING_SCALES
from shared_components.experiments.comparison.models import ROUNDS, best_by_metric
from shared_components.experiments.comparison.plan import BEST_OF, LAST, DataChanges, Run, resolved
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.results import Comparison, read_results
from shared_components.experiments.comparison.tables import own_tables
from shared_components.tasks.reconstruction import METRICS
from tests.experiments.comparison.conftest import texts, tiny_site

BEST, BEST_AVERAGED = BEST_OF
MSE, BELOW = METRICS[0], METRICS[2]
SITES = ("a", "b")
COUNT = 5  # rounds


def scores(**by_site):
    """Scores of a model by site: an MSE and a share."""
    return {
        site: {"mse": {"mean": mse}, BELOW.name: {"mean": share}, "pictures": [site]}
        for site, (mse, share) in by_site.items()
    }


def test_each_metric_has_its_best_round_by_the_mean_over_all_sites():
    rounds = {
        1: scores(a=(0.9, 0.0), b=(0.1, 0.4)),  # means 0.5, 0.2
        2: scores(a=(0.2, 0.3), b=(0.4, 0.1)),  # means 0.3, 0.2
        3: scores(a=(0.3, 0.0), b=(0.5, 0.0)),  # means 0.4, 0.0
    }
    outcome = best_by_metric(rounds, (MSE, BELOW))
    assert [outcome[site]["mse"]["mean"] for site in SITES] == [0.2, 0.4]
    assert [outcome[site][BELOW.name]["mean"] for site in SITES] == [0.0, 0.4]  # of equal means the first round's
    assert [outcome[site][ROUNDS] for site in SITES] == [{"mse": 2, BELOW.name: 1}] * 2
    assert [outcome[site]["pictures"] for site in SITES] == [["a"], ["b"]]
    rounds = {1: scores(a=(None, 0.5), b=(0.1, float("nan"))), 2: scores(a=(0.7, 0.1), b=(0.5, 0.1))}
    outcome = best_by_metric(rounds, (MSE, BELOW))
    assert outcome["a"][ROUNDS] == {"mse": 2, BELOW.name: 2} and outcome["b"]["mse"]["mean"] == 0.5
    unknown = best_by_metric({1: scores(a=(None, 0.5)), 2: scores(a=(None, 0.1))}, (MSE, BELOW))
    assert unknown["a"][ROUNDS] == {BELOW.name: 1} and unknown["a"]["mse"] == {"mean": None}


def test_table_7_shows_the_best_round_of_every_row():
    rows = PRESETS["fl-endovit-table7"].variants
    assert all(list(row.shows.values()) == [BEST, BEST_AVERAGED] for row in rows) and len(rows) == 9
    assert all("swa" in resolved(Run(row, 1, 8, {}, {})).variant.arguments for row in rows)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Pre-training as Table 7's, at two sites with one validation frame each, whose means begin in the second round."""
    root = tmp_path_factory.mktemp("runs")
    restoring = {"task": "reconstruction", "videos": {"train": 2, "validation": 1}, "frames_per_video": 1}
    files = {name: tiny_site(root / "sites" / name, number, **restoring) for number, name in enumerate(SITES)}
    training = {**PRETRAINING_SCALES["quick"].training, "epochs": 1, "batch_size": 2, "warmup_rounds": 0}
    (row,) = (row for row in PRESETS["fl-endovit-table7"].variants if row.label == "SSS, FedAvg")
    row = replace(row, data=DataChanges())
    run = resolved(Run(row, 1, COUNT, training, files))
    return replace(run, variant=replace(row, arguments={"swa": {"start": 1}}))


@pytest.fixture(scope="module")
def carried_out(planned, tmp_path_factory):
    """The folder of the run and the comparison of its two rows."""
    root = tmp_path_factory.mktemp("out")
    folder = carrying.carry_out(planned, root)
    return folder, Comparison("A title", "patches", (), SITES, read_results([planned], root, {}))


def means(scores, model, metric):
    return sum(scores["models"][model][site][metric]["mean"] for site in SITES) / 2


@pytest.mark.slow
def test_the_best_number_is_that_of_the_sites_own_validation_over_the_rounds(carried_out):
    """A site validates what it receives, in round r the model of r rounds; with one frame it sees the same mask."""
    folder, _ = carried_out
    outcome = json.loads((folder / "scores.json").read_text())
    lines = [json.loads(line) for line in (folder / "server" / "rounds.jsonl").read_text().splitlines()]
    for name, best in (("mse", min), ("normalised_mse", min), ("below_300", max)):
        own = {
            r: sum(one["metrics"][name]["mean"] for one in lines if one["kind"] == "site" and one["round"] == r) / 2
            for r in range(1, COUNT)
        }
        own[COUNT] = means(outcome, LAST, name)
        round = outcome["models"][BEST]["a"][ROUNDS][name]
        assert means(outcome, BEST, name) == pytest.approx(best(own.values()), rel=1e-4, abs=1e-9)
        assert own[round] == pytest.approx(best(own.values()), rel=1e-4, abs=1e-9)
        averaged = means(outcome, BEST_AVERAGED, name), means(outcome, "averaged", name)
        assert best(averaged) == averaged[0] and 2 <= outcome["models"][BEST_AVERAGED]["a"][ROUNDS][name] <= COUNT


@pytest.mark.slow
def test_scoring_every_round_changes_no_model(carried_out, planned, tmp_path):
    last = replace(planned.variant, shows={"FedAvg": LAST, "FedAvg + SWA": "averaged"})
    other = carrying.carry_out(replace(planned, variant=last), tmp_path)
    outcome, expected = (json.loads((one / "scores.json").read_text())["models"] for one in (carried_out[0], other))
    assert all(outcome[model][site]["mse"] == expected[model][site]["mse"] for model in expected for site in SITES)
    assert not list((other / "server").glob("scores-*.json"))


@pytest.mark.slow
def test_an_interruption_between_a_round_and_its_scores_loses_none(carried_out, planned, tmp_path, monkeypatch):
    def killed(server, sites):
        if server.state.round == 2:
            raise KeyboardInterrupt
        scored(server, sites)

    scored = carrying.score_round
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(carrying, "score_round", killed)
        carrying.carry_out(planned, tmp_path)
    again = carrying.carry_out(planned, tmp_path)
    outcome, expected = (json.loads((one / "scores.json").read_text())["models"] for one in (again, carried_out[0]))
    assert outcome[BEST] == expected[BEST] and outcome[BEST_AVERAGED] == expected[BEST_AVERAGED]


@pytest.mark.slow
def test_the_tables_have_the_best_numbers_and_their_rounds(carried_out):
    _, comparison = carried_out
    numbers, rounds = own_tables(comparison)
    assert comparison.labels == ["SSS, FedAvg", "SSS, FedAvg + SWA"] == [row[0] for row in rounds.rows]
    assert "each column's best round" in numbers.note and "The same videos select the rounds" in numbers.note
    assert rounds.title.endswith("the rounds of these numbers") and list(rounds.head)[:-1] == list(numbers.head)[:-2]
    assert all(1 <= int(cell) <= COUNT for row in texts(rounds) for cell in row[1:])
    assert comparison.results[0].records and not comparison.results[1].records
