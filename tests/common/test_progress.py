"""Loops tell how far they are, and whoever listens hears it."""

import threading

import pytest

from shared_components.common.progress import Step, duration, follow, heard, report_progress, speed, under


def test_a_loop_tells_its_beginning_and_every_item_that_is_done_with():
    steps = []
    with heard(steps.append):
        assert list(follow("ab", "reading")) == ["a", "b"]
    assert steps == [Step("reading", 0, 2), Step("reading", 1, 2), Step("reading", 2, 2)]


def test_an_item_counts_only_once_the_loop_asks_for_the_next():
    steps = []
    with heard(steps.append):
        items = follow(iter([7, 8]), "reading")
        next(items)
    assert steps == [Step("reading", 0, None)]  # of an iterator nobody knows the length


def test_nobody_need_listen_and_a_listener_hears_its_own_thread_alone():
    steps = []
    report_progress("training", 1, 2)
    with heard(steps.append):
        thread = threading.Thread(target=report_progress, args=("rendering",))
        thread.start()
        thread.join()
        with heard(lambda step: None):
            report_progress("validating")
        report_progress("saving")
    report_progress("training", 2, 2)
    assert steps == [Step("saving")]


def test_a_block_names_whose_work_it_is():
    steps = []
    with under("nobody"), heard(steps.append), under("round 1/2"), under("site-1"):
        report_progress("training", 1, 2)
    assert steps == [Step("round 1/2 site-1 training", 1, 2)]


def test_a_step_is_said_in_a_few_words():
    assert str(Step("training", 12, 26, "loss 0.412")) == "training 12/26 loss 0.412"
    assert str(Step("reading", 3, None)) == "reading 3"
    assert str(Step("saving")) == "saving"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (540, "9 min"), (5400, "1.5 h"), (32400, "9.0 h")]
)
def test_a_duration_has_one_unit(seconds, text):
    assert duration(seconds) == text
    assert speed(1.62, "frames", seconds) == f"1.6 frames/s  about {text} left"


def test_no_time_left_is_written_where_it_is_unknown():
    assert speed(0.5, "frames", None) == "0.5 frames/s"
