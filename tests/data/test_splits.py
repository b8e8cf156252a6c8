"""Splits have the published numbers of videos, and a test on seen videos is refused."""

from dataclasses import replace

import pytest

from shared_components.data import splits
from shared_components.data.custom.description import Own
from shared_components.data.site import RENDERED, Site, Source, VideoRange
from shared_components.data.splits import (
    SEEN,
    choose_few_videos,
    refuse_seen_test,
    refuse_seen_videos,
    seen_videos_entry,
)

CHOLECSEG8K = {"train": (1, 9, 18, 20, 24, 25, 26, 28, 35, 37, 43, 48, 55), "test": (12, 27)}
"""Split of EndoViT, which validates on 17 and 52."""
TASKS = ("segmentation", "triplets", "phases")
FOLD_5 = [video for fold in splits.CHOLECT45_FOLDS[:4] for video in fold][:-5]
"""Training videos of fold 5; the last five of the other folds are for validation."""


def test_splits_and_few_shot_lists_have_the_published_numbers_of_training_videos():
    assert [len(set(fold)) for fold in splits.CHOLECT45_FOLDS] == [9] * 5
    assert len({video for fold in splits.CHOLECT45_FOLDS for video in fold}) == 45
    assert [len(videos) for videos in splits.CHOLEC80.values()] == [40, 8, 32]
    training = dict(zip(TASKS, (CHOLECSEG8K["train"], FOLD_5, splits.CHOLEC80["train"]), strict=True))
    for task, lists in splits.FEW_SHOT.items():
        for count, runs in lists.items():
            assert len(runs) == 3 and all(len(set(videos)) == count for videos in runs)
            assert all(set(videos) <= set(training[task]) for videos in runs)


def test_a_few_videos_are_those_of_the_papers_run_or_the_first_by_their_digest():
    """The order of `printf SEED/VIDEO | sha256sum`: 1/d, 1/a, 1/b, 1/c and 2/c, 2/a, 2/b, 2/d."""
    few = [choose_few_videos("abcd", count, seed) for count, seed in ((1, 1), (2, 1), (3, 2))]
    assert few == [["d"], ["a", "d"], ["a", "b", "c"]]
    training = splits.named("cholecseg8k", CHOLECSEG8K["train"])
    assert choose_few_videos(training, 2, 1, dataset="cholecseg8k", task="segmentation") == ["video01", "video24"]
    assert choose_few_videos(training, 1, 3, dataset="cholecseg8k", task="segmentation") == ["video43"]
    drawn = choose_few_videos(training, 2, 1)
    assert choose_few_videos(training, 2, 1, dataset="", task="segmentation") == drawn
    assert choose_few_videos(training, 2, 1, dataset="cholecseg8k", task="reconstruction") == drawn
    few = choose_few_videos(training[:4], 2, 1, dataset="cholecseg8k", task="segmentation")
    assert few == choose_few_videos(training[:4], 2, 1)
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"trains on 4 videos, and {count} are needed"):
            choose_few_videos("abcd", count, 1)


def test_each_variant_leaves_out_the_test_videos_of_its_task_only_in_cholec80():
    names = ["video12", "video13", "video41"]
    assert [splits.remove_test_videos(names, "cholec80_frames", task) for task in splits.LEFT_OUT] == [
        ["video13", "video41"], ["video12", "video41"], ["video12", "video13"]
    ]  # fmt: skip
    assert splits.remove_test_videos(names, "heico", "segmentation") == names
    tested = (CHOLECSEG8K["test"], splits.CHOLECT45_FOLDS[4], splits.CHOLEC80["test"])
    assert all(set(videos) <= set(splits.LEFT_OUT[task]) for task, videos in zip(TASKS, tested, strict=True))
    assert [len(videos) for videos in splits.LEFT_OUT.values()] == [4, 9, 40]


def test_a_test_that_the_start_has_seen_is_refused_under_any_datasets_name_and_for_a_site(tmp_path):
    start = "vit.safetensors"
    header = seen_videos_entry({"cholec80": splits.named("cholec80", (1, 68)), "heico": ["Rectal1"]})
    refuse_seen_videos(header, "cholect50", ["VID70"], start=start)
    refuse_seen_videos({}, "cholect50", ["VID68"], start=start)
    refuse_seen_videos(header, "gynsurg", ["video68"], start=start)
    with pytest.raises(ValueError, match=r"vit\.safetensors has seen 1 of the test's videos of cholect50 \(VID68\)"):
        refuse_seen_videos(header, "cholect50", ["VID70", "VID68"], start=start)
    with pytest.raises(ValueError, match="seen_videos in its header cannot be read"):
        refuse_seen_videos({SEEN: "[1]"}, "cholect50", [], start=start)
    header = seen_videos_entry({"psi_ava": ["CASE001", "CASE021"]})  # the same operations as GraSP's
    refuse_seen_videos(header, "grasp", ["CASE041", "CASE002"], start=start)
    with pytest.raises(ValueError, match=r"has seen 1 of the test's videos of grasp \(CASE021\)"):
        refuse_seen_videos(header, "grasp", ["CASE041", "CASE021"], start=start)
    names = [f"video{n:02d}" for n in range(1, 81)]
    assert choose_few_videos(names, 2, 1, dataset="psi_ava", task="phases") != ["video01", "video25"]
    own, seen = site(tmp_path), seen_videos_entry({"cholec80_frames": ["video68"]})[SEEN]
    refuse_seen_test("", own, start="vit.safetensors")
    refuse_seen_test(seen_videos_entry({"cholec80": ["video01"]})[SEEN], own, start="vit.safetensors")
    refuse_seen_test(seen, replace(own, split={"test": (VideoRange("VID68", 0, 5),)}), start="vit.safetensors")
    with pytest.raises(ValueError, match=r"vit\.safetensors has seen 1 of the test's videos of cholect45 \(VID68\); s"):
        refuse_seen_test(seen, own, start="vit.safetensors")


def site(tmp_path, *, dataset="cholect45", rendered=False, own=None, added=None):
    split = {"train": (VideoRange("VID01"), VideoRange("VID02", 3, 9)), "test": (VideoRange("VID68"),)}
    if rendered:
        (tmp_path / RENDERED).write_text("{}")
    return Site(
        "a", Source(dataset, own), tmp_path / "data", (), split, "", 1, True, None, "", (), 0.0, tmp_path / "site.yaml",
        added=added,
    )  # fmt: skip


def test_sites_add_their_videos_but_no_names_of_rendered_or_a_hospitals_own_ones(tmp_path):
    other = replace(site(tmp_path), split={"train": (VideoRange("VID05"),)})
    seen = seen_videos_entry({"cholect45": ["VID09"]})[SEEN]
    expected = seen_videos_entry({"cholect45": ["VID01", "VID02", "VID05", "VID09"]})
    assert splits.add_seen_videos(seen, [site(tmp_path), other]) == expected
    assert splits.add_seen_videos("", []) == {}
    seen = seen_videos_entry({"cholec80": ["video68"]})[SEEN]
    rendered = site(tmp_path, rendered=True)
    refuse_seen_test(seen, rendered, start="vit.safetensors")
    assert splits.seen_videos_after_training("", rendered) == {}
    assert splits.seen_videos_after_training(seen, rendered) == {SEEN: seen}
    (tmp_path / RENDERED).unlink()
    hospital = site(tmp_path, own=Own("frames", {}, ("background", "tool")))
    assert splits.seen_videos_after_training("", hospital) == {}
    both, own = site(tmp_path, added=site(tmp_path, dataset="heico")), ["VID01", "VID02"]
    expected = seen_videos_entry({"cholec80": ["video68"], "cholect45": own, "heico": own})
    assert splits.seen_videos_after_training(seen, both) == expected
    with pytest.raises(ValueError, match="seen_videos in its header cannot be read"):
        refuse_seen_test("[1]", hospital, start="vit.safetensors")
