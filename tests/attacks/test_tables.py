"""What the benchmarks' rows become: means over seeds, differences from no attack, the worst site, who was refused."""

from evidence.benchmarks import leakage
from evidence.benchmarks.robustness_tables import tables


def row(case, seed, *dice, method="fedavg", refused=(), stopped=""):
    sites = {f"site-{n}": value for n, value in enumerate(dice, 1)}
    found = [{"round": 3, "site": "site-5", "reason": reason} for reason in refused]
    return {
        "method": method, "case": case, "seed": seed, "dice": sites, "refused": found, "stopped": stopped,
    }  # fmt: skip


def test_cells_are_means_over_seeds_with_the_difference_from_no_attack():
    rows = [
        row("none", 1, 0.5, 0.3),
        row("none", 2, 0.6, 0.4),
        row("sign_flip", 1, 0.1, 0.0),
        row("sign_flip", 2, 0.2, 0.1),
    ]
    text = tables(rows)
    assert "| FedAvg | 45.0 | 10.0 (-35.0) |" in text
    assert "| FedAvg | 35.0 | 5.0 (-30.0) |" in text  # the worst sites: 0.3 and 0.4; 0.0 and 0.1
    assert text.endswith("No attack was refused.")


def test_what_was_not_run_is_empty_and_a_job_that_ended_says_so():
    rows = [
        row("none", 1, 0.5),
        row("none", 1, 0.4, method="krum"),
        row("mimic", 1, 0.5),
        row("noise", 1, 0.3),
        row("noise", 1, method="krum", stopped="round 3 has 4 valid updates and needs 5"),
    ]
    text = tables(rows)
    assert "| FedAvg | 50.0 | 30.0 (-20.0) | 50.0 (+0.0) |" in text
    assert "| Krum | 40.0 | job ends |  |" in text
    assert "- Krum, noise, 100 times: round 3 has 4 valid updates and needs 5" in text


def test_attacks_on_one_method_have_a_table_of_their_own_and_refusals_their_reason():
    rows = [
        row("none", 1, 0.5, method="pfedsis"),
        row("sensitivity", 1, 0.4, method="pfedsis", refused=["its sensitivity goes up to 1e+03"]),
        row("beyond_noise", 1, 0.5, method="pfedsis"),
    ]
    text = tables(rows)
    assert "| sensitivity × 50 | 40.0 (-10.0) | 40.0 (-10.0) |" in text
    assert "- PFedSIS, sensitivity × 50: its sensitivity goes up to 1e+03" in text
    assert "- PFedSIS, noise, 1e39 times: not refused; Dice 50.0" in text


def test_leakage_is_a_mean_over_rounds_and_what_was_not_tried_is_empty():
    both = [
        {"mean": {"psnr": 10.0, "ssim": 0.1}, "update": {"psnr": 20.0, "ssim": 0.4}},
        {"mean": {"psnr": 12.0, "ssim": 0.3}, "update": {"psnr": 21.0, "ssim": 0.6}},
    ]
    member = {
        "steps": 20, "model": "whole model", "auc": 0.75, "interval": (0.6, 0.9), "beside": 0.8,
        "beside_interval": (0.7, 0.9), "loss": 0.1, "loss_others": 0.2,
    }  # fmt: skip
    found = {
        "inversions": [{"network": "tiny", "batch": 1, "steps": 1, "rounds": both}], "membership": [member],
    }  # fmt: skip
    text = leakage.tables(found)
    assert "| tiny | 1 | 1 |  | 20.5 dB, 0.50 |  |  | 11.0 dB, 0.20 |  |" in text
    assert "| 20 | whole model | 0.75 (0.60 to 0.90) | 0.80 (0.70 to 0.90) | 0.100, 0.200 |" in text
