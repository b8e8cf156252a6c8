"""The improvement over local training: the numbers that SurgFed's paper prints, and its table."""

import math
from dataclasses import replace

import pytest

from shared_components.core.card import Metric
from shared_components.experiments.comparison.delta import improvement
from shared_components.experiments.comparison.tables import delta_tables, own_tables
from tests.experiments.comparison.conftest import THREE, compared, mixed, texts

IOU, DICE, RMSE = Metric("iou", "IoU", True), Metric("dice", "Dice", True), Metric("rmse_pixels", "RMSE", False)
SEGMENTATION, DEPTH = (IOU, DICE), (RMSE,)
TABLE_1 = {  # of the paper: metrics, SurgFed's, Local Train's, and the printed improvement
    "Endovis2017": (SEGMENTATION, (62.17, 73.76), (58.77, 70.47), 5.23),
    "Endovis2018": (SEGMENTATION, (73.33, 81.44), (71.53, 80.06), 2.12),
    "AutoLaparo": (SEGMENTATION, (83.45, 88.89), (82.39, 88.04), 1.13), "SCARED": (DEPTH, (8.78,), (10.76,), 18.42),
    "StereoMIS": (DEPTH, (14.34,), (14.75,), 2.73),
}  # fmt: skip


def test_equation_9_gives_the_papers_printed_improvements_and_their_average():
    outcome = {}
    for site, (metrics, ours, local, printed) in TABLE_1.items():
        outcome[site] = improvement(list(zip(metrics, ours, local, strict=True)))
        assert outcome[site] == pytest.approx(printed, abs=0.06), site
    assert sum(outcome.values()) / 5 == pytest.approx(5.93, abs=0.005)  # printed: 5.92
    assert math.isnan(improvement([]))
    assert math.isnan(improvement([(DICE, 0.5, 0.0)]))
    assert math.isnan(improvement([(DICE, math.nan, 0.5), (IOU, 0.5, 0.5)]))


@pytest.mark.parametrize("printed, figure_3b", [
    ((10.91, 14.39), (-1.4, 2.4)),  # row 2: "w/o LHA (Mem)"; "w/o LHA (Dec + Mem)" has -12.3 and 1.3
    ((8.77, 14.64), (18.5, 0.7)),  # row 3: "w/o LCS (Dec + Mem)"
])  # fmt: skip
def test_rows_2_and_3_of_table_2_are_rows_of_figure_3b(printed, figure_3b):
    local = [TABLE_1[site][2][0] for site in ("SCARED", "StereoMIS")]
    outcome = [round(improvement([(RMSE, value, alone)]), 1) for value, alone in zip(printed, local, strict=True)]
    assert outcome == pytest.approx(figure_3b, abs=0.051)


def test_the_table_has_sites_of_all_tasks_and_is_relative_to_the_mean_of_local_training():
    local = [mixed("Local", seed, (0.2 + 0.2 * seed, 0.2), 2.0 + 2 * seed, method="local") for seed in (1, 2)]
    (table,) = delta_tables(compared(*local, mixed("FedAvg", 1, (0.6, 0.1), 4.0), sites=THREE))
    assert table.head == ("Method", "Average", "a", "b", "c")
    assert texts(table)[0] == ["Local", "0.00 ± 0.00", "0.00 ± 28.28", "0.00 ± 0.00", "0.00 ± 28.28"]
    assert texts(table)[1] == ["FedAvg", "-3.33", "20.00", "-50.00", "20.00"]
    assert "segmentation by Dice and IoU; depth by RMSE" in table.note


def test_the_scores_behind_it_stand_site_beside_site_in_the_metrics_of_each_task():
    rows = mixed("Local", 1, (0.4, 0.2), 4.0, method="local"), mixed("FedAvg", 1, (0.6, 0.1), 5.0)
    comparison = compared(*rows, layout="delta", sites=THREE)
    improved, scores = own_tables(comparison)
    assert improved.head[1:] == ("Average", "a", "b", "c")
    due = ("a, Dice (%) ↑", "a, IoU (%) ↑", "b, Dice (%) ↑", "b, IoU (%) ↑", "c, RMSE (mm) ↓")
    assert scores.head == ("Method", *due)
    assert texts(scores)[0] == ["Local", "40.00", "20.00", "20.00", "10.00", "4.00"]
    assert own_tables(replace(comparison, results=rows[1:]))[0].head[-1] == "Worst site"  # without local training
