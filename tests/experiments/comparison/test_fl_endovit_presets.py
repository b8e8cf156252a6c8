"""FL-EndoViT's presets: their rows and steps, and several rows of one run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shared_components.commands import compare
from shared_components.core.method import Models, Update, load_method
from shared_components.core.partition import Partition
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.fl_endovit_presets import PRETRAINING_SCALES, RELEASED
from shared_components.experiments.comparison.output import write_all
from shared_components.experiments.comparison.plan import Run, at_scale, first_averaged_round, resolved
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.results import Comparison, read_results
from shared_components.experiments.comparison.run import carry_out
from shared_components.experiments.comparison.tables import own_tables
from shared_components.networks.vit import DEVIATION
from shared_components.scenes.site import write_site
from tests.experiments.comparison.conftest import parsed, texts

TABLE1 = PRESETS["fl-endovit-table1"]
LIMITS = ["patches below 0.3 (%)", "patches below 0.1 (%)", "patches below 0.05 (%)", "patches below 0.01 (%)"]


def test_table_1_has_the_papers_rows_with_and_without_swa_the_released_steps_and_two_controls():
    labels = [label for row in TABLE1.variants for label in row.shows]
    trained = [row.label for row in TABLE1.variants if row.trains]
    assert trained == [
        "Centralised", "Adaptive FedSAM", "FedAvg", "FedMedian", "QFedAvg (q = 2)", "QFedAvg (q = 0.5)", "FedAvgM",
        "Multi-Krum", "FedAdam", RELEASED,
    ]  # fmt: skip
    assert labels == [f"{name}{swa}" for name in trained for swa in ("", " + SWA")] + ["Mean colour", "Untrained"]
    assert all(label in labels for one in TABLE1.versus for pair in one.rows.values() for label in pair)
    averaged = {rounds: first_averaged_round(rounds) for rounds in (1, 2, 4, 8, 15, 20)}
    assert averaged == {1: 0, 2: 1, 4: 3, 8: 6, 15: 12, 20: 15}  # the last quarter of the rounds


@pytest.mark.parametrize("preset", ["fl-endovit-table1", "fl-endovit-aggregation"])
@pytest.mark.parametrize(("sites", "kept"), [(3, 2), (4, 3), (5, 3), (6, 4), (9, 6)])
def test_krum_keeps_six_of_nine_sites_and_of_fewer_as_large_a_share(preset, sites, kept):
    (row,) = (row for row in PRESETS[preset].variants if "Krum" in row.label)
    given = [Update(f"site-{i}", 1, {"w": torch.tensor([float(i**2)])}) for i in range(sites)]
    method = load_method(row.method, **row.arguments)
    result = method.server.aggregator.apply({}, Partition(()), Models({"w": torch.zeros(1)}, {}), given)
    chosen = [update.pieces["w"].item() for update in given if update.site in result.report["krum"]["chosen"]]
    assert len(chosen) == kept and result.models.shared["w"].item() == pytest.approx(sum(chosen) / kept)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_all_rows_train_alike_but_for_the_released_steps(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_sites", lambda *_: {"sites": {"a": ""}, "held_out": "", "server": ""})
    args = parsed("--preset", "fl-endovit-table1", "--scale", scale, "--seeds", "7,", "--out", str(tmp_path))
    runs = [run for run in compare.planned(args, compare.chosen(args)) if run.variant.trains]
    released = [run.settings().accumulate for run in runs if run.variant.label == RELEASED]
    settings = [replace(run.settings(), accumulate=1) for run in runs]
    assert all(one == settings[0] for one in settings) and released[0] > 1 and settings[0].epochs == 1
    assert {(run.rounds, run.start) for run in runs} == {(PRETRAINING_SCALES[scale].rounds, "random")}
    first_averaged = first_averaged_round(runs[0].rounds)
    assert all(run.variant.arguments["swa"] == {"start": first_averaged} for run in runs)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of FedAvg and the controls at two sites of two frames, in one process."""
    root, files = tmp_path_factory.mktemp("runs"), {}
    for number, name in enumerate("ab"):
        files[name] = str(write_site(
            root / "sites" / name, look="rose", seed=number, task="reconstruction", frames_per_video=2,
            videos={"train": 1, "validation": 1}, height=64, width=64,
        ))  # fmt: skip
    training = {**PRETRAINING_SCALES["quick"].training, "epochs": 1, "batch_size": 2, "warmup_rounds": 0}
    rows = [
        row for row in at_scale(TABLE1, PRETRAINING_SCALES["quick"]).variants if row.label in ("FedAvg", "Controls")
    ]
    runs = [resolved(Run(row, 1, 4, training, files)) for row in rows]
    from_second = {True: {"swa": {"start": 2}}, False: {}}
    runs = [replace(r, variant=replace(r.variant, arguments=from_second[r.variant.trains])) for r in runs]
    for run in runs:
        carry_out(run, root)
    return Comparison("A title", "patches", (), ("a", "b"), read_results(runs, root, {}))


@pytest.mark.slow
def test_one_run_has_a_row_of_its_last_model_and_one_of_the_mean(compared):
    assert compared.labels == ["FedAvg", "FedAvg + SWA", "Mean colour", "Untrained"]
    last, mean, colour, untrained = compared.results
    assert last.folder == mean.folder != colour.folder == untrained.folder
    (group,) = compared.groups
    losses = [result.average(group, group.metrics[-1]) for result in compared.results]
    assert len(set(losses)) == 4 and losses[0] < losses[3]
    assert last.records and not mean.records and (last.cost("steps"), mean.cost("steps")) == (8, 8)
    (table,) = own_tables(compared)
    assert list(table.head) == ["Method", *LIMITS, "loss", "optimizer steps"] and texts(table)[2][-1] == "–"
    assert "validation videos of a, b" in table.note and compared.split == "validation"
    for result in compared.results:
        scores = result.scores["sites"]["a"]
        assert [(one["video"], len(one["values"])) for one in scores["samples"]] == [("instrument_dataset_2", 7)] * 2
        assert all((result.folder / "a" / "tested" / file).is_file() for _, file in scores["pictures"][0]["files"])


@pytest.mark.slow
def test_the_mean_colours_loss_is_near_the_frames_variance_in_normalised_pixels(compared):
    """Three quarters of all patches are hidden; their mean squared distance from the mean colour is the variance."""
    result = compared.results[2]
    site = load_site(result.run.sites["b"])
    frames = [read_sample(one).images[0] / 255 / DEVIATION for one in samples(site, "validation", SampleSpec(()))]
    variance = np.mean([frame.var((0, 1)).mean() for frame in frames])
    assert result.scores["sites"]["b"]["normalised_mse"]["mean"] == pytest.approx(variance, rel=0.25)


@pytest.mark.slow
def test_a_control_costs_nothing_and_the_files_hold_all_rows(compared, tmp_path):
    write_all(compared, tmp_path)
    assert (tmp_path / "costs.csv").read_text().count("\n") == 3
    assert all(label in (tmp_path / "index.html").read_text() for label in compared.labels)
