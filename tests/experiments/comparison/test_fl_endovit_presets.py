"""FL-EndoViT's presets: their rows, steps, sites and sizes, runs with several rows, and rows carried out."""

import csv
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.commands import _compare as compare
from shared_components.core.bundle import load_bundle
from shared_components.core.method import Models, Update, load_method
from shared_components.core.partition import Partition
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.data.splits import FEW_SHOT, LEFT_OUT
from shared_components.experiments.comparison import fl_endovit_presets
from shared_components.experiments.comparison.fl_endovit_presets import DOWNSTREAM_TABLES, PRETRAINING_SCALES, RELEASED
from shared_components.experiments.comparison.names import STARTS
from shared_components.experiments.comparison.output import write_all
from shared_components.experiments.comparison.plan import SCALES, Run, at_scale, first_averaged_round, resolved
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.results import Comparison, read_results
from shared_components.experiments.comparison.run import carry_out
from shared_components.experiments.comparison.tables import own_tables
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import CheckpointError
from shared_components.networks.resnet_clips import ResNet50, ResNetClips
from shared_components.networks.vit import DEVIATION
from tests.experiments.comparison import conftest
from tests.experiments.comparison.conftest import DICE, SITES, runs_of, texts, tiny_site

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
def test_all_rows_train_alike_but_for_the_released_steps(scale, planned):
    runs = [run for run in planned("--preset", "fl-endovit-table1", "--scale", scale)[1] if run.variant.trains]
    released = [run.settings().accumulate for run in runs if run.variant.label == RELEASED]
    settings = [replace(run.settings(), accumulate=1) for run in runs]
    assert all(one == settings[0] for one in settings) and released[0] > 1 and settings[0].epochs == 1
    assert {(run.rounds, run.start) for run in runs} == {(PRETRAINING_SCALES[scale].rounds, "random")}
    first_averaged = first_averaged_round(runs[0].rounds)
    assert all(run.variant.arguments["swa"] == {"start": first_averaged} for run in runs)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of FedAvg and the controls at two sites of two frames, in one process."""
    root = tmp_path_factory.mktemp("runs")
    restoring = {"task": "reconstruction", "videos": {"train": 1, "validation": 1}}
    files = {name: tiny_site(root / "sites" / name, number, **restoring) for number, name in enumerate("ab")}
    quick = PRETRAINING_SCALES["quick"]
    training = {**quick.training, "epochs": 1, "batch_size": 2, "warmup_rounds": 0}
    rows = [row for row in at_scale(TABLE1, quick).variants if row.label in ("FedAvg", "Controls")]
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


ALL = [*DOWNSTREAM_TABLES, "fl-endovit-table7"]


def rows(table, start="FL-EndoViT"):
    """Return the labels of a table's rows without the start."""
    labels = [row.label for row in PRESETS[f"fl-endovit-{table}"].variants]
    return [label.removeprefix(f"{start}").removeprefix(", ") for label in labels if label.startswith(start)]


def test_the_tables_have_the_papers_rows_and_the_few_shot_videos_of_table_9():
    shots = ("1 video", "2 videos", "4 videos", "all videos")
    assert rows("table2") == [f"{videos}, {size}" for videos in shots for size in ("low", "high")]
    assert rows("table3") == ["2 videos", "4 videos", "8 videos", "all videos"]
    assert rows("table4") == [f"{videos}, {stage}" for videos in rows("table3") for stage in ("S1", "S2")]
    assert rows("table6-segmentation") == [f"all videos, {a}{b}" for b in ("", ", frozen") for a in ("low", "high")]
    assert rows("table6-triplets") == ["all videos", "all videos, frozen"]
    assert rows("table6-phases") == [f"all videos{a}, {b}" for a in ("", ", frozen") for b in ("S1", "S2")]
    assert rows("table5") == rows("table10") == rows("table11") == [""]
    for name in DOWNSTREAM_TABLES:
        table = name.removeprefix("fl-endovit-")
        assert all(rows(table, start) == rows(table) for start in STARTS.values())
    tasks = [
        (row.label.partition(",")[0], row.data.leaves_out, row.method) for row in PRESETS["fl-endovit-table7"].variants
    ]
    short, methods = zip(("SSS", "ATR", "SPR"), LEFT_OUT, strict=True), ("centralised", "fedsam", "fedavg")
    assert tasks == [(*names, method) for names, method in product(short, methods)]
    for table, task in (("table2", "segmentation"), ("table3", "triplets"), ("table4", "phases")):
        assert {row.data.videos for row in PRESETS[f"fl-endovit-{table}"].variants} == {0, *FEW_SHOT[task]}


@pytest.mark.parametrize("name", ALL)
def test_every_table_can_be_planned_at_every_scale(name, planned):
    for scale in SCALES:
        preset, runs = planned("--preset", name, "--scale", scale)
        assert len({run.variant.label for run in runs}) == len(runs) == len(preset.variants) > 0
        if name == "fl-endovit-table7":
            continue
        for run in runs:
            size = fl_endovit_presets.HIGH if ", high" in run.variant.label else fl_endovit_presets.LOW
            settings = run.settings()
            assert (settings.height, settings.width) == size[scale]
            for one in filter(None, (run, run.before)):
                assert one.open_bundle().network["architecture"] == ("base" if scale == "paper" else "tiny")


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """A file of ResNet-50 as torchvision writes it."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("imagenet") / "resnet50.pth"
    torch.save(ResNet50(classes=1000).state_dict(), path)
    return path


@pytest.mark.parametrize("scale", SCALES)
def test_table_10_has_resnet_50_from_its_file_and_no_other(scale, planned, imagenet, tmp_path):
    words = ("--preset", "fl-endovit-table10", "--scale", scale)
    preset, runs = planned(*words, "--start-of", f"resnet={imagenet}")
    first, *others = runs
    assert first.variant.label == "RN50" and first.start_file == str(imagenet)
    assert "RN50 is resnet50.pth" in preset.remark
    assert isinstance(weightless(first.open_bundle().network), ResNetClips) and first.variant.method == "local"
    assert all(run.settings() == replace(first.settings(), start=run.settings().start) for run in others)
    assert all(run.open_bundle().tasks == first.open_bundle().tasks for run in others)
    preset, runs = planned(*words)
    assert "RN50" not in {run.variant.label for run in runs} and "--start-of resnet=FILE" in preset.remark
    torch.save({"conv1.weight": torch.ones(64, 3, 7, 7)}, tmp_path / "resnet18.pth")
    with pytest.raises(CheckpointError, match="another network than ResNet-50 encoder: it lacks"):
        planned("--preset", "fl-endovit-table10", "--start-of", f"resnet={tmp_path / 'resnet18.pth'}")


@pytest.mark.slow
def test_the_row_of_resnet_50_is_carried_out(tmp_path, monkeypatch, imagenet):
    row = PRESETS["fl-endovit-table10"].variants[0]
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["fl-endovit-table10"], variants=(row,)))
    out = ["--scale", "quick", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    assert main(["compare", "--preset", "tiny", "--start-of", f"resnet={imagenet}", *out]) == 0
    with (tmp_path / "scores.csv").open() as file:
        outcome = [float(line["value"]) for line in csv.DictReader(file) if line["metric"] == "accuracy"]
    assert len(outcome) >= 4 and all(0 <= value <= 1 for value in outcome)


@pytest.mark.parametrize("name", DOWNSTREAM_TABLES)
def test_the_papers_scale_is_the_bundles_training(name):
    sizes = {"height": 0, "width": 0, "seed": 0}
    bundles = {row.bundle: load_bundle(row.bundle).training for row in PRESETS[name].variants}
    for run in runs_of(name, "paper"):
        assert {**vars(run.settings()), **sizes} == {**vars(bundles[run.bundle]), **sizes}
    assert PRESETS[name].scales["paper"].rounds == next(iter(bundles.values())).rounds


def test_equal_rows_of_several_tables_are_one_run_and_second_stages_follow_the_first(planned):
    outcome = {}
    for name in DOWNSTREAM_TABLES:
        for run in runs_of(name, "small"):
            outcome.setdefault(run.name, []).append(name)
    assert {tuple(tables) for tables in outcome.values() if len(tables) > 1} == {
        ("fl-endovit-table2", "fl-endovit-table6-segmentation"), ("fl-endovit-table3", "fl-endovit-table6-triplets"),
        ("fl-endovit-table4", "fl-endovit-table6-phases"),
        ("fl-endovit-table5", "fl-endovit-table10", "fl-endovit-table11"),
    }  # fmt: skip
    runs = {run.variant.label: run for run in planned("--preset", "fl-endovit-table6-phases")[1]}
    for label, run in runs.items():
        if label.endswith("S2"):
            assert run.before == runs[label.replace("S2", "S1")] and Run.from_json(run.to_json()) == run
            assert run.before.start == run.start


def test_each_class_has_its_f1_and_its_recall():
    one = conftest.result("A", 1, (0.5, 0.5))
    for site, values in zip(SITES, ((0.2, 0.4), (0.6, None)), strict=True):
        one.scores["sites"][site]["classes"] = {"shaft": dict(zip(("f1", "recall"), values, strict=True))}
    comparison = conftest.compared(one, layout="classes")
    (table,) = compare.own_tables(comparison)
    heads = dict(zip(table.head, texts(table)[0], strict=True))
    assert heads["shaft, F1 (%)"] == "40.00" and heads["shaft, recall (%)"] == "40.00"
    assert heads["background, F1 (%)"] == "–" and comparison.groups[0].first == DICE


@pytest.mark.slow
def test_a_few_shot_row_and_both_stages_are_carried_out(tmp_path, monkeypatch):
    kept = [row for row in PRESETS["fl-endovit-table4"].variants if row.label.startswith("FL-EndoViT, 2 videos")]
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["fl-endovit-table4"], variants=tuple(kept)))
    out = ["--scale", "quick", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    assert main(["compare", "--preset", "tiny", *out]) == 0
    with (tmp_path / "scores.csv").open() as file:
        outcome = {row["label"] for row in csv.DictReader(file) if row["metric"] == "f1"}
    assert outcome == {"FL-EndoViT, 2 videos, S1", "FL-EndoViT, 2 videos, S2"}
