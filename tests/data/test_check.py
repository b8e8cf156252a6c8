"""Every bad file is found before the first round, and named with its site."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from shared_components.commands import check_data, unpack_sar_rarp50
from shared_components.data.check import check_site, readable_samples
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.samples import LABELLED, Sample, SampleSpec, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site


def remove(path: Path, layouts) -> None:
    path.unlink()


def damage(path: Path, layouts) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def shrink(path: Path, layouts) -> None:
    array = np.zeros((4, 4, 3) if "seq_" in str(path) else (4, 4), dtype=np.uint8)
    layouts.write(path, array.astype(np.uint16) if "keyframe_" in str(path) else array)


def mislabel(path: Path, layouts) -> None:
    shape = (layouts.H, layouts.W, 3) if "seq_" in str(path) else (layouts.H, layouts.W)
    layouts.write(path, np.full(shape, 99, dtype=np.uint8))


def run(*paths: Path) -> int:
    parser = ArgumentParser()
    check_data.configure(parser)
    return check_data.run(parser.parse_args([str(path) for path in paths]))


def own_asks(dataset: str) -> SampleSpec:
    return SampleSpec(targets=find_reader(dataset).TARGETS)


def train_frame(path: Path, spec: SampleSpec = LABELLED) -> Sample:
    return samples(load_site(path), "train", spec)[1]


@pytest.mark.parametrize("dataset", reader_names())
def test_good_data_have_no_problem(dataset, make_site, capsys):
    path = make_site(dataset)

    assert check_site(load_site(path), own_asks(dataset)) == []
    assert run(path) == 0
    assert "1 of 1 sites are ready" in capsys.readouterr().out


@pytest.mark.parametrize("dataset", reader_names())
@pytest.mark.parametrize(
    ("spoil", "of_mask", "what"),
    [
        (remove, False, "file is missing"),
        (remove, True, "file is missing"),
        (damage, False, "cannot be read as .npy|is not a readable image"),
        (damage, True, "cannot be read as .npy|is not a readable image"),
        (shrink, True, "(mask|depth) is 4x4 but its image .* is 80x64"),
        (mislabel, True, r"unknown ids \[99\]|holds the unknown colour \(99, 99, 99\)|holds uint8"),
    ],
)
def test_every_bad_file_is_reported_once_by_site_and_file(dataset, spoil, of_mask, what, make_site, layouts, capsys):
    path = make_site(dataset)
    frame = train_frame(path, own_asks(dataset))
    file = next(iter(frame.targets.values()))[0] if of_mask else frame.images[-1]
    spoil(file, layouts)

    (problem,) = check_site(load_site(path), own_asks(dataset))

    assert (problem.file, problem.site, problem.split, problem.sample) == (file, "hospital-a", "train", frame)
    assert not problem.quarantined
    assert str(problem).startswith(f"site hospital-a: {file}: ")
    assert re.search(what, problem.what)
    assert run(path) == 1
    assert str(problem) in capsys.readouterr().out


def test_all_bad_files_of_a_frame_are_listed(make_site, layouts):
    path = make_site()
    frame = train_frame(path)
    frame.images[-1].unlink()
    for mask in frame.targets["label"]:
        mislabel(mask, layouts)

    assert [problem.file for problem in check_site(load_site(path))] == [*frame.images, *frame.targets["label"]]


def test_a_quick_check_only_looks_whether_files_are_there(make_site, layouts):
    path = make_site()
    listed = samples(load_site(path), "train")
    mislabel(listed[0].targets["label"][0], layouts)
    listed[1].images[-1].unlink()

    (problem,) = check_site(load_site(path), full=False)

    assert problem.file == listed[1].images[-1]


@pytest.mark.parametrize("split", [{}, {"train": []}, {"test": ["instrument_dataset_1"]}])
def test_a_site_without_training_data_is_reported(split, make_site, capsys):
    path = make_site(split=split)

    (problem,) = check_site(load_site(path))

    assert str(problem).startswith(f"site hospital-a: {path}: split 'train' has no frames; ")
    assert run(path) == 1
    assert str(problem) in capsys.readouterr().out


def test_an_empty_split_is_reported(make_site):
    path = make_site(split={"train": ["instrument_dataset_1"], "validation": []})

    (problem,) = check_site(load_site(path))

    assert (problem.split, problem.what) == ("validation", "split 'validation' has no frames")


def test_a_split_that_the_job_needs_is_reported_where_the_site_lists_none(make_site):
    site = load_site(make_site(split={"train": ["instrument_dataset_1"]}))

    assert check_site(site) == []
    assert [problem.split for problem in check_site(site, required=("train", "validation"))] == ["validation"]


def test_a_video_that_was_removed_after_loading_is_reported(make_site, tmp_path):
    site = load_site(make_site())
    (tmp_path / "data/instrument_dataset_1").rename(tmp_path / "elsewhere")

    (problem,) = check_site(site)

    assert "instrument_dataset_1" in str(problem)


def test_a_misspelt_key_is_reported_by_the_command(make_site, capsys):
    path = make_site(datset="endovis2017")

    assert run(path) == 1
    assert f"{path}: unknown key 'datset'; did you mean 'dataset'?" in capsys.readouterr().out


def test_a_task_that_does_not_exist_is_reported_by_the_command(make_site, capsys):
    path = make_site("endovis2017")
    path.write_text(path.read_text() + "task: dephts\n")
    assert run(path) == 1
    assert "task 'dephts' does not exist; there are depth, " in capsys.readouterr().out


def test_the_command_reads_a_folder_of_sites(make_site, tmp_path, capsys):
    make_site()
    for name in ("site-1", "site-2"):
        (tmp_path / "sites" / name).mkdir(parents=True)
        text = (tmp_path / "site.yaml").read_text().replace("root: data", f"root: {tmp_path / 'data'}")
        (tmp_path / "sites" / name / "site.yaml").write_text(text)

    assert run(tmp_path / "sites") == 0
    assert "2 of 2 sites are ready" in capsys.readouterr().out


def test_a_folder_without_sites_is_reported(tmp_path, capsys):
    assert run(tmp_path) == 1
    assert "no such file" in capsys.readouterr().out


def test_bad_frames_within_the_quarantine_are_set_aside(make_site, capsys):
    path = make_site(frames=10, quarantine=0.1)
    site, bad = load_site(path), train_frame(path)
    bad.images[-1].unlink()

    (problem,) = check_site(site)
    kept, aside = readable_samples(site, "train")

    assert problem.quarantined
    assert (len(kept), aside) == (9, [bad])
    assert run(path) == 0
    assert "set aside by the site's quarantine" in capsys.readouterr().out


def test_more_bad_frames_than_the_quarantine_allows_are_refused(make_site):
    path = make_site(frames=10, quarantine=0.1)
    site = load_site(path)
    for frame in samples(site, "train")[:2]:
        frame.images[-1].unlink()

    with pytest.raises(SiteError, match=r"site hospital-a: .*frame000\.png: file is missing.*2 of 10 frames"):
        readable_samples(site, "train")


def test_what_was_found_before_is_not_read_again(make_site):
    path = make_site(frames=10, quarantine=0.1)
    site, bad = load_site(path), train_frame(path)
    bad.images[-1].unlink()
    problems = check_site(site)
    samples(site, "train")[5].images[-1].write_bytes(b"")

    kept, aside = readable_samples(site, "train", problems=problems)

    assert (len(kept), aside) == (9, [bad])


def test_all_frames_are_readable_where_nothing_is_wrong(make_site):
    site = load_site(make_site())

    assert readable_samples(site, "train") == (samples(site, "train"), [])


def test_the_unpack_command_refuses_a_folder_without_videos(tmp_path, capsys):
    parser = ArgumentParser()
    unpack_sar_rarp50.configure(parser)

    assert unpack_sar_rarp50.run(parser.parse_args([str(tmp_path)])) == 1
    assert "holds no video_* folders" in capsys.readouterr().err


def test_real_endovis2015_surgery_has_no_problem(real_data, tmp_path):
    path = tmp_path / "site.yaml"
    split = "{train: [{OP1: [0, 30]}], test: [{OP1: [30, 40]}]}"
    root = real_data / "endovis2015_rigid"
    path.write_text(f"dataset: endovis2015_rigid\nroot: {root}\nsplit: {split}\n")
    site = load_site(path)

    assert check_site(site) == []
    assert (len(samples(site, "train")), len(samples(site, "test"))) == (30, 10)
