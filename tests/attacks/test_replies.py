"""Every attack by hand, flipped labels compared with their site, and the tables of attacks."""

import math

import numpy as np
import pytest
import torch

from evidence.attacks.labels import flip_site, flipped
from evidence.attacks.replies import Exchange, Seen, attacked, inflated, inner_product, mimic, noise, sign_flip
from evidence.benchmarks import leakage
from evidence.benchmarks.robustness_tables import tables
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Message, Reply
from shared_components.federation.protocol import Answers, Ask
from shared_components.scenes.site import write_site

LOOK = {"look": "rose", "seed": 1, "frames_per_video": 2, "height": 64, "width": 96}


def message(*values, steps=0, sensitivity=None):
    """Return a message with the piece ``w``, a counter and, if given, the extra ``sensitivity``."""
    groups = {} if sensitivity is None else {"sensitivity": {"w": torch.tensor(sensitivity)}}
    return Reply({"samples": 4}, {"w": torch.tensor(values), "steps": torch.tensor(steps)}, groups)


@pytest.fixture
def seen():
    """The round began at (1, 1); the attacker went to (2, 3), the others to (3, 1) and (1, -3)."""
    start = message(1.0, 1.0)
    others = {
        "site-1": Exchange(start, message(3.0, 1.0, steps=7, sensitivity=[0.5, 0.25])),
        "site-2": Exchange(start, message(1.0, -3.0, steps=7, sensitivity=[2.0, 0.25])),
    }
    own = Exchange(start, message(2.0, 3.0, steps=7, sensitivity=[0.125, 0.5]))
    return Seen(own, others, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("attack", "pieces", "extra"),
    [
        (sign_flip(times=1), [0.0, -1.0], None), (sign_flip(times=10), [-9.0, -19.0], None),
        # the honest changes are (2, 0) and (0, -4), and their mean is (1, -2)
        (inner_product(epsilon=0.5), [0.5, 2.0], None), (inner_product(epsilon=10.0), [-9.0, 21.0], None),
        (mimic(), [3.0, 1.0], [0.5, 0.25]), (mimic(victim="site-2"), [1.0, -3.0], [2.0, 0.25]),
        (inflated(times=100.0), [2.0, 3.0], [12.5, 50.0]),
        # the others' maxima are 0.5 and 2; the upper median is 2
        (inflated(times=99.0, everywhere=True, with_pieces=sign_flip(times=1)), [0.0, -1.0], [198.0, 198.0]),
    ],
)  # fmt: skip
def test_an_attack_sends_these_values_and_its_own_number_of_frames(seen, attack, pieces, extra):
    reply = attack(seen)
    assert int(reply.pieces["steps"]) == 7 and reply.header == {"samples": 4}
    assert reply.pieces["w"].dtype == torch.float32 and reply.pieces["w"].tolist() == pieces
    assert extra is None or reply.groups["sensitivity"]["w"].tolist() == extra


def test_changes_count_from_each_sites_own_start():
    own = Exchange(message(10.0, 10.0), message(11.0, 10.0))
    given = Seen(own, {"a": Exchange(message(0.0, 0.0), message(4.0, 0.0))}, torch.Generator())
    assert inner_product(epsilon=1.0)(given).pieces["w"].tolist() == [6.0, 10.0]


def test_noise_has_the_given_length():
    start, there = torch.zeros(40_000), torch.full((40_000,), 0.5)
    own = Exchange(Message({}, {"w": start}), Message({}, {"w": there}))
    reply = noise(times=3.0)(Seen(own, {}, torch.Generator().manual_seed(1)))
    added = reply.pieces["w"] - there
    assert float(added.norm()) == pytest.approx(3.0 * 0.5 * math.sqrt(40_000), rel=0.02)
    assert abs(float(added.mean())) < 0.03 and torch.kthvalue(added.abs(), 27_307).values.item() == (
        pytest.approx(1.5, rel=0.02)
    )  # of a normal distribution 68.27 % lie within one deviation


@pytest.mark.parametrize("attack", [sign_flip(times=-1), noise(times=0), inflated(times=1)])
def test_an_attack_of_strength_zero_is_the_honest_reply_bit_for_bit(seen, attack):
    reply = attack(seen)
    assert torch.equal(reply.pieces["w"], seen.own.reply.pieces["w"])
    assert torch.equal(reply.groups["sensitivity"]["w"], seen.own.reply.groups["sensitivity"]["w"])


def test_only_the_attackers_reply_to_a_round_changes(seen):
    replies = {"site-1": seen.honest["site-1"].reply, "site-2": seen.own.reply}
    messages = {site: message(1.0, 1.0) for site in replies}
    for task, expected in (("round", [0.0, -1.0]), ("enrol", [2.0, 3.0])):
        changed = attacked(Ask(task, messages, 2), Answers(replies), "site-2", sign_flip(times=1), round=0).replies
        assert changed["site-2"].pieces["w"].tolist() == expected
        assert changed["site-1"] is replies["site-1"]


def test_noise_differs_from_round_to_round_and_repeats_with_its_seed(seen):
    def draw(round, seed):
        answers = Answers({"site-1": seen.honest["site-1"].reply, "site-2": seen.own.reply})
        ask = Ask("round", dict.fromkeys(answers.replies, seen.own.received), 2)
        changed = attacked(ask, answers, "site-2", noise(times=1), round=round, seed=seed)
        return changed.replies["site-2"].pieces["w"].tolist()

    assert draw(0, 1) == draw(0, 1) and draw(0, 1) != draw(1, 1) and draw(0, 1) != draw(0, 2)


def test_ids_are_counted_from_the_other_end_and_unlabelled_pixels_stay():
    assert flipped(np.array([[0, 1], [3, 255]], dtype=np.uint8), 4).tolist() == [[3, 2], [0, 255]]


@pytest.mark.parametrize("layout", ["endovis2017", "sar_rarp50"])
@pytest.mark.parametrize("share, bad", [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_only_the_training_labels_of_a_share_of_the_frames_are_flipped(tmp_path, layout, share, bad):
    videos = {"train": 2, "validation": 1, "test": 1}
    honest = write_site(tmp_path / "honest", layout=layout, videos=videos, **LOOK)
    hostile = flip_site(honest, tmp_path / "hostile", share=share)
    for split in videos:
        pairs = list(zip(samples(load_site(honest), split), samples(load_site(hostile), split), strict=True))
        for number, (before, after) in enumerate(pairs):
            was, now = read_sample(before), read_sample(after)
            flip = split == "train" and number < bad
            expected = 3 - was.targets["label"] if flip else was.targets["label"]
            assert np.array_equal(was.images, now.images)
            assert np.array_equal(now.targets["label"], expected), (split, number)


def test_other_classes_than_parts_are_refused(tmp_path):
    path = write_site(tmp_path / "a", layout="endovis2017", videos={"train": 1}, **LOOK)
    path.write_text(path.read_text() + "\nclasses: foreground\n")
    with pytest.raises(ValueError, match=r"its classes are \('background', 'instrument'\)"):
        flip_site(path, tmp_path / "b")


def row(case, seed, *dice, method="fedavg", refused=(), stopped=""):
    sites = {f"site-{n}": value for n, value in enumerate(dice, 1)}
    refusals = [{"round": 3, "site": "site-5", "reason": reason} for reason in refused]
    return {"method": method, "case": case, "seed": seed, "dice": sites, "refused": refusals, "stopped": stopped}


def test_cells_are_means_over_seeds_with_the_difference_from_no_attack():
    rows = [row("none", 1, 0.5, 0.3), row("none", 2, 0.6, 0.4)]
    text = tables([*rows, row("sign_flip", 1, 0.1, 0.0), row("sign_flip", 2, 0.2, 0.1)])
    assert "| FedAvg | 45.0 | 10.0 (-35.0) |" in text
    assert "| FedAvg | 35.0 | 5.0 (-30.0) |" in text  # the worst sites: 0.3 and 0.4; 0.0 and 0.1
    assert text.endswith("No attack was refused.")


def test_missing_runs_are_empty_and_an_ended_job_is_reported():
    rows = [
        row("none", 1, 0.5), row("none", 1, 0.4, method="krum"), row("mimic", 1, 0.5), row("noise", 1, 0.3),
        row("noise", 1, method="krum", stopped="round 3 has 4 valid updates and needs 5"),
    ]  # fmt: skip
    text = tables(rows)
    assert "| FedAvg | 50.0 | 30.0 (-20.0) | 50.0 (+0.0) |" in text
    assert "| Krum | 40.0 | job ends |  |" in text
    assert "- Krum, noise, 100 times: round 3 has 4 valid updates and needs 5" in text


def test_attacks_on_one_method_have_a_separate_table_and_refusals_a_reason():
    rows = [
        row("none", 1, 0.5, method="pfedsis"),
        row("sensitivity", 1, 0.4, method="pfedsis", refused=["its sensitivity goes up to 1e+03"]),
        row("beyond_noise", 1, 0.5, method="pfedsis"),
    ]
    text = tables(rows)
    assert "| sensitivity × 50 | 40.0 (-10.0) | 40.0 (-10.0) |" in text
    assert "- PFedSIS, sensitivity × 50: its sensitivity goes up to 1e+03" in text
    assert "- PFedSIS, noise, 1e39 times: not refused; Dice 50.0" in text


def test_leakage_is_a_mean_over_rounds_and_missing_attacks_are_empty():
    both = [
        {"mean": {"psnr": 10.0, "ssim": 0.1}, "update": {"psnr": 20.0, "ssim": 0.4}},
        {"mean": {"psnr": 12.0, "ssim": 0.3}, "update": {"psnr": 21.0, "ssim": 0.6}},
    ]
    member = {
        "steps": 20, "model": "whole model", "auc": 0.75, "interval": (0.6, 0.9), "beside": 0.8,
        "beside_interval": (0.7, 0.9), "loss": 0.1, "loss_others": 0.2,
    }  # fmt: skip
    inversion = {"network": "tiny", "batch": 1, "steps": 1, "rounds": both}
    text = leakage.tables({"inversions": [inversion], "membership": [member]})
    assert "| tiny | 1 | 1 |  | 20.5 dB, 0.50 |  |  | 11.0 dB, 0.20 |  |" in text
    assert "| 20 | whole model | 0.75 (0.60 to 0.90) | 0.80 (0.70 to 0.90) | 0.100, 0.200 |" in text
