"""Published numbers equal the papers' and are compared with the files on the disk."""

import pytest

from shared_components.commands import check_data
from shared_components.data.endo700k import PARTS
from shared_components.data.published import FL_ENDOVIT, PUBLISHED, compare_with_published
from shared_components.data.readers import find_reader, reader_names
from shared_components.scenes.site import write_site
from shared_components.scenes.site_sets import IMAGES
from tests.data.conftest import WRITERS, frame_image, run_command, write, write_yaml
from tests.data.label_layouts import LABEL_WRITERS

WITHOUT = {"cholect50", "scared", "stereomis"}  # no exact number is known


def numbers(dataset):
    return {entry.split: sorted(entry.counts) for entry in PUBLISHED[dataset]}


def test_every_data_set_has_a_published_number_but_three_and_every_number_a_source():
    assert set(PUBLISHED) == set(reader_names())
    assert {name for name in PUBLISHED if not PUBLISHED[name]} == WITHOUT
    for entries in PUBLISHED.values():
        assert all(source for entry in entries for source in entry.counts.values())
        assert len({entry.split for entry in entries}) == len(entries)


def test_parts_and_splits_have_the_numbers_of_their_papers():
    assert sum(FL_ENDOVIT.values()) == 734_549 and set(FL_ENDOVIT) == set(PARTS.values())
    assert round(max(FL_ENDOVIT.values()) / min(FL_ENDOVIT.values())) == 461
    assert all(any(FL_ENDOVIT[name] in entry.counts for entry in PUBLISHED[name]) for name in FL_ENDOVIT)
    assert [IMAGES[site] for site in PARTS] == list(FL_ENDOVIT.values())
    every = {name: max(numbers(name)[""]) if name == "esad" else numbers(name)[""][0] for name in FL_ENDOVIT}
    assert sum(every.values()) == 743_724  # EndoViT's total, with its 347,257 of HeiCo and 49,544 of ESAD
    assert numbers("endovis2017") == {"train": [8 * 225], "test": [8 * 75 + 2 * 300]}
    assert numbers("autolaparo") == {"train": [170 * 6], "validation": [57 * 6], "test": [73 * 6]}
    assert numbers("endovis2018") == {"": [997, 15 * 149]}
    assert numbers("cholecseg8k") == {"": [101 * 80], "FL-EndoViT's test": [13 * 80]}
    assert numbers("sar_rarp50")[""] == [3_252, 13_043, 3_252 + 13_043]
    assert sum(map(sum, numbers("pfedsis_npy").values())) == 1_800 + 600 + 2_235 + 997 + 4_710 + 1_138


@pytest.mark.parametrize("dataset", [name for name in {**WRITERS, **LABEL_WRITERS} if name not in WITHOUT])
def test_a_small_copy_of_every_layout_differs_from_what_is_published(dataset, tmp_path):
    names = {**WRITERS, **LABEL_WRITERS}[dataset](tmp_path, 3, 4)
    lines = list(compare_with_published(dataset, tmp_path))
    assert lines and all(line.startswith(f"warning: {dataset}") for line in lines)
    if dataset not in ("sisvse", "pfedsis_npy"):
        images = sum(len(find_reader(dataset).frames(tmp_path, name)) for name in names)
        expected = {"appendix300": "3 videos", "gynsurg": "3 clips"}.get(dataset, f"{images} images")
        assert f"found {expected}, but published are" in lines[0]


def test_a_whole_release_is_as_published_and_endovis2017s_test_follows_its_training(tmp_path):
    root = tmp_path / "clips"
    write(root / "imgs/001001.jpg", frame_image(0))
    for clip in (*range(1, 171), *range(228, 301)):  # the validation split has no file
        for second in range(1, 7):
            (root / f"imgs/{clip:03d}{second:03d}.jpg").touch()
    assert [line.split(" (")[0] for line in compare_with_published("autolaparo", root)] == [
        "autolaparo, train: found 1,020 images, as published",
        "autolaparo, test: found 438 images, as published",
    ]
    (root / "imgs/300006.jpg").unlink()
    warning = "warning: autolaparo, test: found 437 images, but published are 438 (six frames of each clip"
    assert list(compare_with_published("autolaparo", root))[1].startswith(warning)
    for video, count in ((1, 300), (9, 300)):
        folder = tmp_path / f"instrument_dataset_{video}"
        (folder / "ground_truth/Left_labels").mkdir(parents=True)
        (folder / "left_frames").mkdir()
        for number in range(count):
            (folder / f"left_frames/frame{number:03d}.png").touch()
    lines = [line.split(", but")[0] for line in compare_with_published("endovis2017", tmp_path)]
    assert lines == ["warning: endovis2017, train: found 225 images", "warning: endovis2017, test: found 375 images"]


def test_check_data_warns_with_both_numbers_and_the_site_may_start(tmp_path, capsys):
    for number in (1, 2, 12):
        write(tmp_path / f"frames/video{number:02d}/video{number:02d}_000001.png", frame_image(0))
    config = {"dataset": "cholec80_frames", "root": ".", "split": {"train": ["video01"], "validation": ["video02"]}}
    assert run_command(check_data, write_yaml(tmp_path / "site.yaml", config)) == 0
    lines = capsys.readouterr().out
    number = "184,498 (EndoViT's list of Endo700k)"
    assert f"  warning: cholec80_frames: found 3 images, but published are {number}\n" in lines
    assert "before segmentation: found 2 images, but published are 178,129 (FL-EndoViT, Table 8)\n" in lines


def test_a_rendered_site_is_not_compared(tmp_path, capsys):
    write_site(tmp_path / "a", look="rose", seed=1, layout="endovis2017", videos={"train": 1}, frames_per_video=1)
    run_command(check_data, tmp_path / "a")
    assert "published" not in capsys.readouterr().out


def test_a_video_that_cannot_be_listed_is_named(tmp_path):
    names = WRITERS["grasp"](tmp_path, 2, 1)
    for folder in ("frames", "annotations/segmentations"):
        (tmp_path / folder / "CASE053").mkdir()
    lines = list(compare_with_published("grasp", tmp_path))
    assert len(names) == 2 and len(lines) == 2
    assert lines[0] == "warning: grasp: found 2 images, but published are 3,490 (FedST, section 4)"
    assert lines[1].startswith("warning: CASE053 is not counted: ")
