"""Sets of sites: the paper's proportions, looks that differ, centres with every grade to test."""

import numpy as np
import pytest
import yaml

from shared_components.cli import main
from shared_components.commands import render as command
from shared_components.data.readers import find_reader
from shared_components.scenes.looks import LOOKS, PART_LOOKS, SITE_LOOKS, look_named
from shared_components.scenes.scene import render_video
from shared_components.scenes.site_sets import IMAGES, site_set, write_set_site

SIZE = {"height": 64, "width": 64}


def test_nine_sites_are_as_unequal_as_endo700k():
    """Table 8: 734,549 images, 461-fold."""
    assert sum(IMAGES.values()) == 734_549 and round(max(IMAGES.values()) / min(IMAGES.values())) == 461
    images = {site.name: site.videos["train"] * site.frames_per_video for site in site_set("endo700k", frames=16)}
    assert images["actions160"] == 16
    for name, count in images.items():
        assert count == pytest.approx(16 * IMAGES[name] / 761, rel=0.02), name


def test_every_part_has_a_look_of_its_own_and_none_has_a_turn():
    assert list(PART_LOOKS) == list(IMAGES) and not set(PART_LOOKS) & {*LOOKS, *SITE_LOOKS}
    assert {look_named(name).technique for name in IMAGES} == {"laparoscopic", "robotic", "mixed"}
    means = [next(render_video(name, 1, frames=1, **SIZE)).image.mean((0, 1)) for name in IMAGES]
    apart = [np.abs(a - b).max() for n, a in enumerate(means) for b in means[:n]]
    assert min(apart) > 3


def test_a_part_has_its_operation_and_things_unless_others_are_asked_for():
    assert next(render_video("cholec80", 1, frames=1, **SIZE)).things.any()
    asked = next(render_video("cholec80", 1, frames=1, things=("uterus",), **SIZE))
    assert asked.things.max() <= 1 and asked.triplets == ()


def test_four_centres_have_every_grade_to_validate_and_test():
    centres = site_set("fedsurg", frames=4)
    assert [(site.name, site.videos["train"]) for site in centres] == [
        ("centre-1", 40), ("centre-2", 36), ("centre-3", 44), ("unseen", 24),
    ]  # fmt: skip
    assert len({site.look for site in centres}) == 4
    assert all(site.videos["validation"] % 6 == site.videos["test"] % 6 == 0 for site in centres)


def test_the_smallest_site_is_written_once(tmp_path):
    file = write_set_site(tmp_path, "endo700k", 8, frames=2, seed=0, **SIZE)
    written = file.stat().st_mtime_ns
    assert file == tmp_path / "actions160" / "site.yaml"
    assert write_set_site(tmp_path, "endo700k", 8, frames=2, seed=0, **SIZE).stat().st_mtime_ns == written
    described = yaml.safe_load(file.read_text())
    assert described["task"] == "reconstruction" and len(described["split"]["train"]) == 1
    reader = find_reader("endovis2017")
    assert len(reader.images(file.parent / "endovis2017", described["split"]["train"][0])) == 2


def test_the_command_keeps_sites_that_were_there_and_refuses_the_options_of_a_set(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "site_set", lambda name, frames: site_set(name, frames=frames)[8:])
    last = lambda out, name, place, **size: write_set_site(out, name, 8, **size)  # noqa: E731
    monkeypatch.setattr(command, "write_set_site", last)
    words = ["render", "--set", "endo700k", "--out", str(tmp_path), "--height", "64", "--width", "64", "--frames", "2"]
    assert main(words) == 0 and "videos of 2 frames" in capsys.readouterr().out
    assert main([*words[:-1], "3"]) == 0
    assert "actions160/site.yaml: is there already, and stays as it is" in capsys.readouterr().out
    assert main([*words, "--looks", "rose"]) == 2
    assert "--looks does not apply to --set" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "place", "frames", "said"), [
    ("endo", 0, 2, "known sets: endo700k"), ("fedsurg", 4, 2, "has 4"), ("fedsurg", 0, 0, "empty"),
])  # fmt: skip
def test_what_a_set_has_not_is_refused(name, place, frames, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        write_set_site(tmp_path, name, place, frames=frames, seed=0, **SIZE)
