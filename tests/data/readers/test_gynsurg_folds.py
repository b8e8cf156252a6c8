"""Folds of GynSurg: tables of FL-EndoViT's repository, and clips in folders by class."""

import csv
from pathlib import Path

import numpy as np
import pytest

from shared_components.commands import check_data, site
from shared_components.data.files.images import DataError
from shared_components.data.readers.gynsurg import fold_cases
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import run_command
from tests.data.label_layouts import write_video

CLASSES = {
    "action": {"Coagulation": "Coagulation", "Suction_Irrigation": "Suction and Irrigation", "Rest": "Rest"},
    "bleeding": {"Bleeding": "Bleeding", "Non_bleeding": "Non-Bleeding"},
}
"""Folders of the classes and their labels in the tables, by kind."""
CASES = {"action": [57, 71, 78, 81, 86, 90, 98, 116, 120, 160], "bleeding": [81, 110, 116, 214, 227]}
TIMES = {"table": "0%3A17%3A57.2-0:18:11.883330fps", "disk": "0_17_57.2-0_18_11.883330fps"}
"""Times in a clip's name, in tables and on disk."""


def write_release(root: Path, kind: str) -> None:
    for folder in CLASSES[kind]:
        for case in CASES[kind]:
            name = f"case_{case}_{folder}_{TIMES['disk']}_clip_1.mp4"
            write_video(root / f"GynSurg_Action_3sec/GynSurg_{kind}_dataset/{folder}/{name}", 3, 30)


def write_table(folder: Path, kind: str) -> None:
    """Write four folds; every fourth case of a fold is for the test."""
    file = folder / kind / f"df_{kind}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["vids", "labels", "set_type", "split", "case_id"])
        for fold in range(4):
            for name, label in CLASSES[kind].items():
                for place, case in enumerate(CASES[kind]):
                    clip = f"GynSurg_Action_Segments/{name}/case_{case}_{name}_{TIMES['table']}_clip_1.mp4"
                    table.writerow([clip, label, "test" if place % 4 == fold else "train", fold, case])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for kind in CLASSES:
        write_release(tmp_path, kind)
        write_table(tmp_path / "tables", kind)
    return tmp_path


def make_sites(release: Path, *words: object) -> int:
    return run_command(site, "gynsurg", release, "--tables", release / "tables", "--out", release / "sites", *words)


def cases(loaded, split):
    return {part.video.split("_")[1] for part in loaded.split[split]}


def test_each_fold_becomes_a_site_whose_patients_are_in_one_split(release, capsys):
    assert make_sites(release) == 0
    line = f"{release}/sites/action-fold-0/site.yaml: train 18, validation 3, test 9 clips\n"
    assert line in capsys.readouterr().out
    sites = {path.parent.name: load_site(path) for path in (release / "sites").glob("*/site.yaml")}
    assert set(sites) == {f"{kind}-fold-{fold}" for kind in CLASSES for fold in range(4)}
    for name, loaded in sites.items():
        kind, fold = name.split("-fold-")
        tested = {str(case) for place, case in enumerate(CASES[kind]) if place % 4 == int(fold)}
        assert cases(loaded, "test") == tested
        assert cases(loaded, "train").isdisjoint(cases(loaded, "validation"))
        assert cases(loaded, "train") | cases(loaded, "validation") == {str(case) for case in CASES[kind]} - tested
        assert len(cases(loaded, "validation")) == max(1, round(0.2 * (len(CASES[kind]) - len(tested))))
        assert loaded.task == "classification" and loaded.publish == ()
    assert run_command(check_data, release / "sites" / "bleeding-fold-2") == 0
    with pytest.raises(SiteError, match="is there already; give --out another folder"):
        make_sites(release)


def test_clips_have_the_class_of_their_folder_and_one_name_however_their_times_are_written(release):
    make_sites(release, "--kind", "action")
    loaded = load_site(release / "sites/action-fold-1")
    expected = {"Coagulation": 0, "Rest": 2, "Suction": 3}
    listed = samples(loaded, "train", SampleSpec(("action",), frames=2, targets_of="video"))
    for sample in listed:
        target = read_sample(sample).targets["action"]
        np.testing.assert_array_equal(target, expected[sample.video.split("_")[2]])
    assert {sample.video.split("_")[2] for sample in listed} == set(expected)
    folds = fold_cases(release, "bleeding", release / "tables")
    names = [video for sets in folds.values() for videos in sets.values() for video in videos]
    assert len(names) == 4 * 10 and all("0_17_57.2-0_18_11.883330fps" in name for name in names)
    for clip in (release / "GynSurg_Action_3sec").rglob("*.mp4"):
        clip.rename(clip.with_name(clip.name.replace("0_18_", "0:18:").replace("0_17_", "0%3A17%3A")))
    assert make_sites(release, "--out", release / "again") == 0


def test_clips_that_are_not_there_are_named_and_many_are_refused(release, capsys):
    folder = release / "GynSurg_Action_3sec/GynSurg_action_dataset"
    first, second, *_ = sorted(folder.rglob("case_57_*.mp4"))
    first.unlink()
    assert make_sites(release, "--kind", "action", "--out", release / "a") == 0
    assert f"left out: 1 clip of the table, missing here, such as action/{first.stem}" in capsys.readouterr().out
    second.unlink()
    with pytest.raises(DataError, match=r"lacks 2 of the 30 clips of fold 0 of action, such as action/case_57"):
        make_sites(release, "--kind", "action", "--out", release / "b")
    assert not (release / "b").exists()


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda file: file.unlink(), "contains no table of the folds of bleeding .* name the folder fine_tuning_g"),
    (lambda file: file.write_text(file.read_text().replace("test", "train")), "0 of bleeding without clips for t"),
    (lambda file: file.write_text(file.read_text().replace(",test,", ",tests,")), "has the set_type 'tests'"),
    (lambda file: file.write_text(file.read_text().replace("vids,", "clips,")), "has no column 'vids'"),
    (lambda file: file.parents[1].rename(file.parents[2] / "elsewhere"), "tables: is no folder; correct the path"),
])  # fmt: skip
def test_tables_that_say_no_folds_are_refused(spoil, words, release):
    spoil(release / "tables/bleeding/df_bleeding.csv")
    with pytest.raises(DataError, match=words):
        make_sites(release, "--kind", "bleeding")
