"""The command on sites of two tasks: one table per task, also for the site where nobody trained."""

import json
from itertools import pairwise

import pytest

from shared_components.cli import main
from shared_components.data.synthetic.site import write_site

pytestmark = pytest.mark.slow

METHODS = "mat_fl,fedavg_cluster"
TINY = ["--scale", "quick", "--seeds", "1", "--rounds", "2", "--iterations", "2", "--size", "32x64", "--jobs", "2"]
SITES = {  # name: (look, layout, task)
    "a": ("rose", "endovis2017", "segmentation"),
    "b": ("crimson", "endovis2018", "segmentation"),
    "c": ("violet", "scared", "depth"),
    "outside": ("ivory", "scared", "depth"),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return the folder of a comparison of two methods, and what the command has said."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, (name, (look, layout, task)) in enumerate(SITES.items()):
        write_site(
            folder / "sites" / name, look=look, seed=number, layout=layout, task=task, frames_per_video=4,
            videos={"train": 1, "validation": 1, "test": 1}, height=64, width=96,
        )  # fmt: skip
    out = folder / "out"
    where = ["--sites", str(folder / "sites"), "--held-out", "outside", "--out", str(out)]
    assert main(["compare", "--methods", METHODS, *TINY, *where]) == 0
    return out


def tables(out):
    """Return the tables of tables.md by their titles, in which each of the first grids is of one task."""
    parts = (out / "tables.md").read_text().split("\n\n")
    rows = [part for part in parts if part.startswith("|")]
    titles = [part for part, after in pairwise(parts) if after.startswith("|")]
    return dict(zip(titles, rows, strict=True))


def test_every_task_has_a_table_of_its_own(compared):
    found = tables(compared)
    segmentation = [t for title, t in found.items() if "Segmentation: shaft, wrist, clasper (a, b): Dice" in title]
    depth = [t for title, t in found.items() if "Depth (c): RMSE (mm), lower is better" in title]
    assert len(segmentation) == len(depth) == 1
    assert segmentation[0].startswith("| Method | Average | a | b | Worst site |")
    assert depth[0].startswith("| Method | Average | c | Worst site | Out of federation |")
    for table in found.values():
        assert not ("| c |" in table and ("| a |" in table or "| b |" in table))
    for table in (*segmentation, *depth):
        assert "MaT-FL" in table and "FedAvg+Cluster" in table


def test_the_outsiders_depth_is_that_of_the_depth_sites_model(compared):
    """Synthetic sites publish theirs; one depth site's mean is its own model, so that both methods have a number."""
    files = list(compared.glob("runs/*/[0-9]*/scores.json"))
    assert len(files) == 2
    for file in files:
        scores = json.loads(file.read_text())
        assert set(scores["sites"]) == {"a", "b", "c"}
        assert "dice" in scores["sites"]["a"] and "rmse" in scores["sites"]["c"]
        assert "dice" not in scores["sites"]["c"] and scores["held_out"]["rmse"]["mean"] > 0
        assert list((file.parent / "server" / "tested").glob("*-prediction.webp"))


def test_the_command_goes_on_from_what_is_done(compared, capsys):
    sites = ["--sites", str(compared.parent / "sites"), "--held-out", "outside"]
    assert main(["compare", "--methods", METHODS, *TINY, *sites, "--out", str(compared)]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 runs are done already" in said
    assert "Depth (c): RMSE (mm)" in said and "(a, b): Dice (%)" in said
