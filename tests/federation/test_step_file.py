"""How far a site is within its task: a file in a simulator."""

from shared_components.common.progress import Step
from shared_components.federation import step_file


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_server_reads_what_the_site_told_last(tmp_path):
    clock = Clock()
    listener = step_file.StepFile(tmp_path / "site-1", clock)
    assert step_file.read_step(tmp_path / "site-1") is None
    listener(Step("training", 1, 9, "loss 0.5"))
    assert step_file.read_step(tmp_path / "site-1") == Step("training", 1, 9, "loss 0.5")
    listener(Step("training", 2, 9))  # too soon
    assert step_file.read_step(tmp_path / "site-1").done == 1
    listener(Step("saving"))  # another thing is told at once
    assert step_file.read_step(tmp_path / "site-1") == Step("saving")
    clock.now += 0.5
    listener(Step("saving", 1, None))
    assert step_file.read_step(tmp_path / "site-1") == Step("saving", 1, None)
    step_file.forget(tmp_path / "site-1")
    assert step_file.read_step(tmp_path / "site-1") is None and not list((tmp_path / "site-1").iterdir())
