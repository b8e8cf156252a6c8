"""FedSurg's tasks: a row that starts from another row, a held-out site that trains, and chance."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from shared_components.commands import _compare as compare
from shared_components.experiments.comparison import plan
from shared_components.experiments.comparison.fedsurg_presets import FEDSURG
from shared_components.experiments.comparison.plan import HELD_OUT, Run, Variant, finished, resolved, scale_of
from shared_components.experiments.comparison.results import read_results
from shared_components.experiments.comparison.run import carry_out
from shared_components.experiments.comparison.sites import set_sites
from shared_components.experiments.comparison.tables import CHANCE_ROW, own_tables
from shared_components.networks.checkpoints import load_metadata
from shared_components.scenes.site import write_site
from tests.experiments.comparison.conftest import parsed, texts

TINY = {"height": 16, "width": 16, "batch_size": 2, "iterations": 1, "crops": False}
SMALL = {"bundle": "fl_endovit_clips", "network": {"size": 16}, "tasks": {"classification": {"frames": 2}}}
FEDAVG = Variant("FedAvg", "fedavg", **SMALL)
TUNED = Variant("Fine-tuned", "local", after=FEDAVG, data=plan.DataChanges(held_out_trains=True), **SMALL)


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """A centre to train at and one outside, each with a video of every grade to test."""
    folder = tmp_path_factory.mktemp("centres")
    size = {"frames_per_video": 2, "height": 64, "width": 64}
    return [
        str(write_site(folder / name, look=look, seed=place, layout="appendix300", task="classification", **size,
                       videos={"train": 4, "validation": 2, "test": 6}))
        for place, (name, look) in enumerate((("centre-1", "rose"), ("unseen", "violet")))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def done(sites, tmp_path_factory):
    """Both rows; the second row was carried out first."""
    root = tmp_path_factory.mktemp("runs")
    first, tuned = (resolved(Run(row, 1, 1, TINY, {"centre-1": sites[0]}, sites[1])) for row in (FEDAVG, TUNED))
    carry_out(tuned, root)
    return root, first, tuned


def test_rows_of_task_2_begin_from_rows_of_task_1_and_train_everywhere():
    rows = {row.label: row for row in FEDSURG.variants}
    assert {row.after.label for row in rows.values() if row.after} <= set(rows)
    assert all(row.data.held_out_trains == (row.method == "local") == ("(2)" in row.label) for row in rows.values())
    sizes = scale_of("small", FEDSURG)
    for row in FEDSURG.variants:
        run = resolved(Run(row, 1, sizes.rounds, sizes.training, {}))
        assert run.before is None or run.before == resolved(replace(run, variant=rows[row.after.label]))
    run.check()
    run = resolved(Run(TUNED, 1, 1, TINY, {}))
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run
    assert TUNED.identity()["after"] == FEDAVG.identity() and "after" not in FEDAVG.identity()


@pytest.mark.slow
def test_a_row_first_carries_out_the_one_that_it_begins_from(done):
    root, first, tuned = done
    shared = load_file(finished(first, root) / "server" / "model.safetensors")
    info = json.loads((finished(tuned, root) / "run.json").read_text())
    assert info["start"]["start"] == "file" and set(info["sites"]) == {"centre-1", HELD_OUT}
    trained = load_file(finished(tuned, root) / HELD_OUT / "model.safetensors")
    moved = max(float((trained[name] - value).abs().max()) for name, value in shared.items())
    assert 0 < moved < 0.01  # one step away
    assert load_metadata(finished(tuned, root) / HELD_OUT / "best.safetensors")["outputs"].startswith("normal,oedema")


@pytest.mark.slow
def test_the_table_has_the_unseen_centre_and_the_chance(done):
    root, *runs = done
    (table,) = own_tables(compare.Comparison("FedSurg", "unseen", (), ("centre-1",), read_results(runs, root, {})))
    assert table.head == (
        "Method", "macro F1 (%) ↑, centres", "unseen centre", "expected cost ↓, centres", "unseen centre",
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in texts(table)}
    assert rows[CHANCE_ROW] == ["16.67", "16.67", "0.300", "0.300"]  # guessing one of six classes; always the third
    assert all(cell not in ("", "–") for row in rows.values() for cell in row)
    assert not table.marks or max(row for row, _ in table.marks) < 2


def test_four_centres_are_rendered_of_which_one_stays_outside(tmp_path, monkeypatch):
    monkeypatch.setattr("shared_components.experiments.comparison.sites.write_set_site", _described)
    files, outside = set_sites(tmp_path, scale_of("quick", FEDSURG), "fedsurg")
    assert list(files) == ["centre-1", "centre-2", "centre-3"] and outside == tmp_path / "unseen"
    assert compare.chosen(parsed("--preset", "fedsurg")).site_set == "fedsurg"


def _described(folder, name, place, **film):
    return folder / ("centre-1", "centre-2", "centre-3", "unseen")[place]
