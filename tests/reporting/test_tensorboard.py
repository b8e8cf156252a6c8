"""TensorBoard reads a run's scalars from one file."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shared_components.reporting.tensorboard import write_scalars


def test_records_of_all_rounds_are_in_one_file_that_tensorboard_reads(tmp_path):
    for round in range(3):
        for site in ("site-1", "site-2"):
            write_scalars(tmp_path, {"round": round, "site": site, "loss": {"segmentation": 0.5 + round}})
    assert len(list(tmp_path.iterdir())) == 1
    log = EventAccumulator(str(tmp_path)).Reload()
    assert log.Tags()["scalars"] == ["site-1/loss/segmentation", "site-2/loss/segmentation"]
    values = [(scalar.step, scalar.value) for scalar in log.Scalars("site-2/loss/segmentation")]
    assert values == [(1, 0.5), (2, 1.5), (3, 2.5)]
