"""Families of drawn looks: exact labels, real proportions, distortion, overlays; named looks keep their bits."""

from functools import cache

import numpy as np
import pytest

from shared_components.scenes import recording, slender
from shared_components.scenes.carving import CLEAR, Carver
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.instruments import KINDS, RADIUS
from shared_components.scenes.look import Look
from shared_components.scenes.looks import BY_NAME, look_named
from shared_components.scenes.motion import Script
from shared_components.scenes.noise import stream
from shared_components.scenes.raster import _BINS, Shader
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.scenes.toolbox import tool
from tests.scenes.test_scenes import SMALL, assert_exact

pytestmark = pytest.mark.slow

NEW = ("surgery", "microscope", "flexible")


@cache
def many(family: str) -> tuple[SceneFrame, ...]:
    """Render frames of 28 videos in different looks, ten seconds apart."""
    return tuple(f for n in range(28) for f in render_video(f"{family}-{n}", n, frames=4, rate=0.1, **SMALL))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_gives_one_look_of_its_family_and_another_number_another(family):
    seven, eight = look_named(f"{family}-7"), look_named(f"{family}-8")
    assert seven == look_named(f"{family}-7") and seven.name == f"{family}-7"
    names = ("organs", "shaft", "metal", "exposure", "noise")
    assert all(getattr(seven, name) != getattr(eight, name) for name in names)


def test_each_family_has_exact_labels_and_shows_only_its_own_instruments():
    for family in NEW:
        assert_exact(many(family))
        assert set(np.unique([frame.parts for frame in many(family)])) == {0, 1, 2, 3}
    seen = {family: {name.split("_", 1)[1] for frame in many(family) for name in frame.tools} for family in NEW}
    assert seen["microscope"] == set(slender.OCULAR) and seen["flexible"] == set(slender.ENDOSCOPIC)
    assert seen["surgery"] > set(KINDS) and not seen["surgery"] & set(slender.KINDS)


def test_one_frame_in_six_of_a_drawn_operation_shows_no_instrument():
    bare = np.mean([not frame.parts.any() for frame in many("surgery")])
    assert 0.10 < bare < 0.25
    empty = [look_named(f"surgery-{n}").empty for n in range(150)]
    scripts = [Script(stream(n), frames=10, rate=0.2, technique="wristed", empty=e) for n, e in enumerate(empty)]
    assert 0.78 < np.mean([bool(script.moment(index).poses) for script in scripts for index in range(10)]) < 0.88
    # an empty phase shows nothing, and without empty phases no random draw changes
    assert not Script(stream(1), frames=9, rate=0.2, technique="mixed", empty=1.0).kinds
    one, other = (Script(stream(1), frames=9, rate=0.2, technique="mixed", **more) for more in ({}, {"empty": 0.0}))
    assert one.kinds == other.kinds and np.array_equal(one.moment(3).shift, other.moment(3).shift)


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_wrist_is_nearly_as_wide_as_the_shaft_and_a_plain_one_is_not(kind):
    def breadth(plate):
        return (plate.cover > 0).any(1).sum() / plate.scale / (2 * RADIUS)

    real = [breadth(tool(kind, 8.0, model, real=True).wrist) for model in range(6)]
    assert min(real) > 0.75 and max(real) < 1.25
    outlines = {tool(kind, 8.0, model, real=True).wrist.cover.tobytes() for model in range(6)}
    assert len(outlines) == 6


def test_real_straight_joints_are_as_wide_as_their_tubes():
    def ratio(real):
        kits = [tool("Grasper", 8.0, model, real=real) for model in range(8)]
        return np.mean([(k.wrist.cover > 0).any(1).sum() / (k.shaft.cover > 0).any(1).sum() for k in kits])

    assert ratio(False) < 0.85 < ratio(True) < 1.1


def test_a_turned_body_is_as_high_as_its_radius():
    carver = Carver(-1.0, 3.0, 2.0, 10.0)
    carver.turned([(0.0, 1.0), (2.0, 1.0)])
    x, y = carver.axes()
    row, column = int(np.argmin(abs(y - 0.6))), int(np.argmin(abs(x - 1.0)))
    assert carver.height[row, column] == pytest.approx(0.8, abs=0.02)  # 0.6^2 + 0.8^2 = 1
    assert not carver.cover[:, x < -0.1].any() and not carver.cover[:, x > 2.1].any()


def test_clear_plastic_shows_what_is_behind_it_and_metal_does_not():
    shader = Shader(BY_NAME["rose"])
    finish = np.array([1 * _BINS**2 + 40, CLEAR * _BINS**2 + 40]) | (170 << 16)
    dark, bright = (np.full((5, 3), level, np.float32) for level in (0.0, 1.0))
    depth, places = np.full(2, 48.0, np.float32), np.array([0, 4])
    change = shader.colours(finish, depth, bright, places) - shader.colours(finish, depth, dark, places)
    assert np.allclose(change, [[0.0] * 3, [0.7] * 3], atol=1e-6)


def test_a_barrel_keeps_corners_and_enlarges_the_middle():
    maps = recording.distortion(Look(name="x", text="", organs=(), barrel=0.5), 64, 96)
    assert (maps[0][0, 0], maps[1][0, 0]) == pytest.approx((0.0, 0.0), abs=1e-4)
    assert maps[0][32, 49] - maps[0][32, 48] == pytest.approx(1 / 1.5, abs=1e-3)
    assert maps[0][32, 95] - maps[0][32, 94] > 1.0 / 1.5 + 0.2  # and the sides are squeezed
    ids = (np.arange(64 * 96) % 4).reshape(64, 96).astype(np.uint8)
    assert set(np.unique(recording.distorted(ids, maps, exact=True))) == {0, 1, 2, 3}


def test_borders_hide_labels_and_writing_does_not():
    look = Look(name="x", text="", organs=(), recorder=("border", "text"))
    overlay = recording.Overlay(look, stream(4), 64, 96)
    picture = np.full((64, 96, 3), 99, np.uint8)
    overlay.draw(picture)
    changed = (picture != 99).any(-1)
    assert overlay.hides and (overlay.bare == 0).any() and changed[overlay.bare == 0].all()
    assert (changed & (overlay.bare == 1)).any()  # writing, over labels that stay


def test_a_processors_octagon_has_cut_corners_and_nothing_lies_outside():
    look = Look(name="x", text="", organs=(), aperture="octagon")
    field = recording.aperture(look, stream(1), 96, 160)
    inside = np.argwhere(field)
    (top, left), (bottom, right) = inside.min(0), inside.max(0)
    corners = [field[row, column] for row in (top, bottom) for column in (left, right)]
    assert not any(corners) and field[(top + bottom) // 2, left] and field[top, (left + right) // 2]
