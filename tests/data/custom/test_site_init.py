"""`surgfl site init` sees what a folder holds, asks the rest, and writes a site.yaml that the check accepts."""

import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from unittest.mock import Mock

import cv2
import nibabel as nib
import numpy as np
import pytest
import yaml

from shared_components.data.custom.guess_layout import known_layout
from shared_components.data.custom.propose_split import propose_split
from shared_components.data.samples import samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import WRITERS, write
from tests.data.custom import conftest
from tests.data.custom.conftest import CLASSES, FRAMES, NAMED, assert_read, init, photograph, values

VIDEOS = ("op_1", "op_2", "op_10", "op_11")
lay = partial(conftest.lay, pictured=photograph, videos=VIDEOS)


@pytest.fixture
def answer(monkeypatch) -> Callable[..., list[str]]:
    """Let somebody sit at a terminal and give these answers; return the questions that were asked."""

    def sit(*answers: str, end: type[BaseException] = EOFError) -> list[str]:
        asked: list[str] = []
        reply = Mock(side_effect=[*answers, end])
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or reply())
        return asked

    return sit


LAYOUTS = [
    # images and masks as they are laid, and the templates of both that are written
    ("images/{v}/f{n:03d}.jpg", "masks/{v}/f{n:03d}.png", "images/{video}", "masks/{video}"),
    ("{v}/img/{n}.png", "{v}/gt/{n}.png", "{video}/img", "{video}/gt"),
    ("2024/{v}/pics/{n}.png", "2024/{v}/gt/{n}.png", "2024/{video}/pics", "2024/{video}/gt"),
    ("{v}/{n:04d}.jpg", "{v}/{n:04d}.png", "{video}/*.jpg", "{video}/*.png"),
    ("{v}/f_{n}.png", "{v}/f_{n}_mask.png", "{video}/f_*.png", "{video}/f_*_mask.png"),
    ("i/{v}/frame_{n}.png", "m/{v}/mask_{n}.png", "i/{video}/frame_*.png", "m/{video}/mask_*.png"),
    ("images/{v}_{n:03d}.jpg", "masks/{v}_{n:03d}.png", "images/{video}_*.jpg", "masks/{video}_*.png"),
    ("{v}.mp4", "masks/{v}/{n:06d}.png", "{video}.mp4", "masks/{video}"),
    ("{v}/video.mp4", "{v}/segments/frame_{n:06d}.png", "{video}/video.mp4", "{video}/segments"),
    ("frames/{v}/{n}.jpg", "labels/{v}.nii.gz", "frames/{video}", "labels/{video}.nii.gz"),
    ("{v}.mp4", "{v}-label.nii.gz", "{video}.mp4", "{video}-label.nii.gz"),
    ("{v}/frames/{n}.png", "{v}/Segmentation.nii.gz", "{video}/frames", "{video}/Segmentation.nii.gz"),
]


@pytest.mark.parametrize(("images", "masks", "image_template", "mask_template"), LAYOUTS)
def test_a_folder_of_ones_own_becomes_a_site(images, masks, image_template, mask_template, tmp_path, capsys):
    lay(tmp_path, images, masks)
    assert init(tmp_path, *NAMED) == 0, capsys.readouterr()
    config = yaml.safe_load((tmp_path / "site.yaml").read_text())
    assert (config["images"], config["masks"]) == (image_template, mask_template)
    assert config["dataset"] == ("nifti" if ".nii" in masks else "frames")
    assert config["split"] == {"train": ["op_1", "op_2"], "validation": ["op_10"], "test": ["op_11"]}
    site = load_site(tmp_path)
    assert site.classes == CLASSES and site.rate == (25.0 if ".mp4" in images else None)
    assert_read(tmp_path, 2 * [*range(FRAMES)])
    output = capsys.readouterr().out
    assert "test               1       4         0          0" in output and str(tmp_path / "site.yaml") in output


@pytest.mark.parametrize(("folder", "name"), [("to-correct/nifti", "to-correct"), ("ward 3", "ward 3")])
def test_a_site_is_named_after_its_folder(folder, name, tmp_path):
    """`surgfl segment --nifti --out to-correct` writes to-correct/nifti."""
    lay(tmp_path / folder, "frames/{v}/{n}.jpg", "labels/{v}.nii.gz")
    assert init(tmp_path / folder, *NAMED) == 0
    assert load_site(tmp_path / folder).name == name


def test_what_cannot_be_seen_is_asked_and_a_wrong_answer_is_asked_again(tmp_path, answer, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    names, splits = ("irrigator", "mean", "", "bulldog clamp"), ("no", "op_1,op_2", "op_10", "op_11")
    asked = answer(*names, *splits, "0", "2", "day surgery", "style,text")
    assert init(tmp_path) == 0, capsys.readouterr()
    assert len(asked) == 12
    assert asked[0].startswith("40 (in 16 of 16 masks, 6.2 % of their pixels) is (a name, background or ignore)")
    assert asked[1] == asked[2] == asked[3] and asked[1].startswith("200 (")
    config = yaml.safe_load((tmp_path / "site.yaml").read_text())
    assert config["ids"] == {40: "irrigator", 200: "bulldog clamp"}
    assert (config["frame_interval"], config["text"], config["publish"]) == (2, "day surgery", ["style", "text"])
    assert "an answer is needed here" in capsys.readouterr().out


def test_enter_takes_what_is_proposed_and_yes_asks_nothing(tmp_path, answer, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    asked = answer("", "", "", "")
    assert init(tmp_path, *NAMED) == 0
    first = (tmp_path / "site.yaml").read_text()
    assert len(asked) == 4
    assert init(tmp_path, *NAMED, "--yes", "--force") == 0
    assert (tmp_path / "site.yaml").read_text() == first and len(asked) == 4


def test_images_without_masks_are_left_out_on_request(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    (tmp_path / "op_1/gt/2.png").unlink()
    assert init(tmp_path, *NAMED) == 2
    sentence = "would leave out 1 image (no mask of the same name; clips may show them): op_1/img/2.png"
    assert sentence in capsys.readouterr().err
    assert init(tmp_path, *NAMED, "--partly-labelled") == 0, capsys.readouterr()
    assert load_site(tmp_path).source.own.partly_labelled
    assert init(tmp_path, *NAMED, "--force", "--no-partly-labelled") == 1
    assert "contains images without a mask in" in capsys.readouterr().out


def test_frames_without_a_label_are_never_guessed_about_and_one_volume_is_cut_by_the_others(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}.nii.gz", drawn=lambda index: values(index) * (index != 2))
    assert init(tmp_path, *NAMED) == 2
    assert "add --partly-labelled or --no-partly-labelled" in capsys.readouterr().err
    assert init(tmp_path, *NAMED, "--no-partly-labelled") == 0
    assert len(samples(load_site(tmp_path), "train")) == 8
    assert init(tmp_path, *NAMED, "--partly-labelled", "--force") == 0
    assert len(samples(load_site(tmp_path), "train")) == 6
    one = tmp_path / "one"
    lay(one, "{v}/img/{n}.png", "{v}.nii.gz", videos=["op"], drawn=lambda index: values(index) * (index != 2))
    assert init(one, *NAMED, "--partly-labelled") == 0, capsys.readouterr()
    assert [len(samples(load_site(one), split)) for split in ("train", "validation", "test")] == [1, 1, 1]


@pytest.mark.parametrize("linked", [True, False])
def test_videos_that_are_links_are_found_and_a_link_to_a_video_beside_it_is_no_video(linked, tmp_path):
    root = tmp_path / ("here" if linked else "nas")
    lay(tmp_path / "nas", "{v}/img/{n}.png", "{v}/gt/{n}.png")
    if linked:
        root.mkdir()
        for video in VIDEOS:
            (root / video).symlink_to(tmp_path / "nas" / video)
        (root / "op_1/img/round").symlink_to(root)
    else:
        (root / "latest").symlink_to(root / "op_2")
    assert init(root, *NAMED) == 0
    site = load_site(root)
    assert [part.video for part in site.split["train"]] == ["op_1", "op_2"]
    assert sum(len(samples(site, split)) for split in site.split) == 16


def test_videos_of_one_name_are_shared_by_two_sites_where_their_images_are_the_same(tmp_path):
    """A second file may read the same folders otherwise; another data set may lie below one's own."""
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    assert init(tmp_path, *NAMED) == 0
    own = load_site(tmp_path).path
    config = yaml.safe_load(own.read_text())
    for name in ("again", "public"):
        lay(tmp_path / name, "{v}/img/{n}.png", "{v}.nii.gz")
        for video in VIDEOS if name == "again" else ():
            shutil.rmtree(tmp_path / name / video)
            (tmp_path / name / video).symlink_to(tmp_path / video)
        assert init(tmp_path / name, *NAMED, "--allow-left-out") == 0
        own.write_text(yaml.safe_dump(config | {"also_trains_on": f"{name}/site.yaml"}))
        if name == "again":
            with pytest.raises(SiteError, match="which trains on op_1, a part of this site's own split 'train'"):
                load_site(own)
        else:
            assert load_site(own).added.name == "public"


def test_a_volume_with_other_axes_is_pointed_out(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}.nii.gz")
    array = np.stack([values(index) for index in range(FRAMES)]).transpose(2, 1, 0)
    nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "op_2.nii.gz")
    assert init(tmp_path, *NAMED) == 0
    assert "op_2.nii.gz has other axes than x, y, t in its header" in capsys.readouterr().out
    assert init(tmp_path, *NAMED, "--axes", "stored", "--force") == 0
    assert "other axes" not in capsys.readouterr().out


@pytest.mark.parametrize("dataset", WRITERS)
def test_a_public_layout_is_recognised(dataset, make_site, tmp_path, capsys):
    make_site(dataset).unlink()
    root = tmp_path / "data"
    assert known_layout(root) == dataset
    if dataset == "sisvse":
        assert init(root) == 2 and "so none is proposed; give --train" in capsys.readouterr().err
        return
    assert init(root, "--out", str(tmp_path / "new.yaml")) == 0, capsys.readouterr()
    site = load_site(tmp_path / "new.yaml")
    assert (site.dataset, site.root) == (dataset, root) and site.split["validation"]
    if dataset == "pfedsis_npy":
        assert str(site.split["test"][0]) == "test/video3"


def test_nothing_is_overwritten_unless_asked(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    (tmp_path / "site.yaml").write_text("mine")
    assert init(tmp_path, *NAMED) == 2
    assert "site.yaml: is there already; give --out another file, or replace it with --force" in capsys.readouterr().err
    assert (tmp_path / "site.yaml").read_text() == "mine"
    assert init(tmp_path, "--force", "--id", "40=irrigator") == 2  # refused, and the earlier file stays
    assert "add --id '200=NAME' (or ignore, background)" in capsys.readouterr().err
    assert (tmp_path / "site.yaml").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["op_1", "op_10", "op_11", "op_2", "site.yaml"]


@pytest.mark.parametrize(("end", "code", "message"), [
    (EOFError, 2, "the answers ended before all was asked"),
    (KeyboardInterrupt, 130, "interrupted; nothing was written"),
])  # fmt: skip
def test_answers_that_end_leave_nothing_behind(end, code, message, tmp_path, answer, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    answer("irrigator", end=end)
    assert init(tmp_path) == code and message in "".join(capsys.readouterr())
    assert not (tmp_path / "site.yaml").exists()


@pytest.mark.parametrize(("options", "sentence"), [
    (("--id", "40"), "--id is '40'; write a value and its name"),
    (("--id", "40=a", "--id", "40=b"), "--id gives 40 twice"), (("--id", "red=a"), "'ids' has the value 'red'"),
    ((*NAMED, "--train", "op_1,op_9"), "there is no video 'op_9'; there are op_1, op_2"),
    ((*NAMED, "--train", "op_1", "--test", "op_1"), "op_1 and op_1 share frames"),
    ((*NAMED, "--publish", "weights"), "--publish names 'weights'; there are style"),
    ((*NAMED, "--images", "{video}/img"), "--images and --masks go together"),
    ((*NAMED, "--images", "{v}/img", "--masks", "{v}/gt"), "contains no images or video files at '{v}/img'"),
    ((*NAMED, "--dataset", "endovis2018"), "contains no videos of endovis2018"),
    ((*NAMED, "--dataset", "nifti"), "NIfTI label volumes named like their video; it contains 4 folders of images"),
])  # fmt: skip
def test_wrong_options_are_refused_in_one_sentence(options, sentence, tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    assert init(tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "site.yaml").exists()


def blurred(index: int) -> np.ndarray:
    return cv2.GaussianBlur(values(index) + np.uint8(3) * photograph(index)[..., 0], (3, 3), 1)


@pytest.mark.parametrize(("laid", "contents"), [
    ({}, "contains no images, videos or volumes"),
    ({"img/{n}.jpg": photograph}, "contains 4 folders of images (op_1/img, op_2/img"),
    ({"masks/{n}.png": values}, "contains 4 folders of masks (op_1/masks"),
    ({"img/{n}.jpg": photograph, "masks/{n}.jpg": blurred}, "export masks without loss, since JPEG"),
    ({"img/{n}.jpg": photograph, "masks/{c}.png": values},
     "4 folders of images (op_1/img, op_2/img, op_10/img, op_11/img), 4 folders of masks (op_1/masks"),
], ids=["nothing", "only images", "only masks", "JPEG masks", "other names"])  # fmt: skip
def test_a_folder_that_makes_no_sense_says_what_was_sought_and_seen(laid, contents, tmp_path, capsys):
    for video, (template, drawn), index in product(VIDEOS, laid.items(), range(FRAMES)):
        write(tmp_path / video / template.format(n=index, c="wxyz"[index]), drawn(index))

    assert init(tmp_path, *NAMED) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(tmp_path) in error
    assert "was searched for frames and masks of equal names, videos and masks numbered like their frames" in error
    assert contents in error and "give their templates with --images and --masks" in error


def test_a_missing_folder_is_named(tmp_path, capsys):
    assert init(tmp_path / "absent", *NAMED) == 2
    assert "absent: is not a folder; name the folder" in capsys.readouterr().err


def test_smoothed_masks_are_refused_by_their_number_of_values(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    for path in tmp_path.glob("op_1/gt/*.png"):
        cv2.imwrite(str(path), photograph(0)[..., 0])
    assert init(tmp_path, *NAMED, "--images", "{video}/img", "--masks", "{video}/gt") == 2
    assert "too many to name; export the masks without smoothing" in capsys.readouterr().err


@pytest.mark.parametrize(("videos", "frames", "split"), [
    ("a", 10, {"train": [{"a": [0, 6]}], "validation": [{"a": [6, 8]}], "test": [{"a": [8, 10]}]}),
    ("a", 3, {"train": [{"a": [0, 1]}], "validation": [{"a": [1, 2]}], "test": [{"a": [2, 3]}]}),
    ("a", 2, {"train": ["a"]}), ("ab", 9, {"train": ["a"], "validation": ["b"]}),
    ("abc", 9, {"train": ["a"], "validation": ["b"], "test": ["c"]}),
    ("abcdefghij", 9, {"train": list("abcdef"), "validation": ["g", "h"], "test": ["i", "j"]}),
    (["test", "train"], 9, {"train": [{"train": [0, 7]}], "validation": [{"train": [7, 9]}], "test": ["test"]}),
    (["a", "b", "test_c"], 9, {"train": ["a"], "validation": ["b"], "test": ["test_c"]}),
    (["trainer", "tested", "vale"], 9, {"train": ["trainer"], "validation": ["tested"], "test": ["vale"]}),
])  # fmt: skip
def test_a_split_is_proposed_by_the_names_and_the_number_of_videos(videos, frames, split):
    assert propose_split(list(videos), lambda video: frames) == split


def test_a_public_folder_beside_the_videos_needs_consent(make_site, tmp_path, capsys):
    make_site("endovis2017").unlink()
    root = tmp_path / "data"
    write(root / "instrument_dataset_1/right_frames/frame000.png", photograph(0))
    assert init(root, "--out", str(tmp_path / "new.yaml")) == 0
    assert "(not read of endovis2017, or in no split)" in capsys.readouterr().out
    write(root / "extra/frame000.png", photograph(0))
    assert init(root, "--out", str(tmp_path / "other.yaml")) == 2
    assert "would leave out 1 other file in extra/" in capsys.readouterr().err
