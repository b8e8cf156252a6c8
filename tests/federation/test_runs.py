"""Which run a resume goes on with, and what a new one is called, whatever the clock says."""

from datetime import UTC, datetime

import pytest

from shared_components.federation import runs
from shared_components.federation.messages import FederationError
from shared_components.federation.runs import open_run, point_latest_to
from tests.federation.conftest import make_job


class Clock(datetime):
    said = "20260101-120000"

    @classmethod
    def now(cls, tz=None):
        return datetime.strptime(cls.said, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a run at a time, and let it end a round."""
    monkeypatch.setattr(runs, "datetime", Clock)

    def begin(when, *, ended=True):
        Clock.said = when
        folder = open_run(make_job("fedavg"), tmp_path, resume=False)
        (folder / "server").mkdir()
        runs.write_json(folder / "run.json", {"job": make_job("fedavg").to_json()})
        if ended:
            (folder / "server" / "round-00000.safetensors").write_bytes(b"a state")
        point_latest_to(folder)
        return folder

    return begin


def resumed(tmp_path):
    return open_run(make_job("fedavg"), tmp_path, resume=True)


def test_a_clock_that_was_set_back_changes_nothing(begin, tmp_path):
    """The newer run has the greater name, too, so that listing and keeping the newest few are right."""
    older, newer = begin("20260601-120000"), begin("20260101-120000")
    assert resumed(tmp_path) == newer and newer.name == "20260601-120000-1"
    assert runs.order(newer.name) > runs.order(older.name)


def test_the_newest_run_is_the_one_that_latest_names(begin, tmp_path):
    first, second = begin("20260101-120000"), begin("20260102-120000")
    assert resumed(tmp_path) == second
    point_latest_to(first)
    assert resumed(tmp_path) == first


def test_twelve_runs_of_one_second_stay_in_order(begin):
    names = [begin("20260101-120000").name for _ in range(12)]
    assert names[0] == "20260101-120000" and names[-1] == "20260101-120000-11"
    assert sorted(names, key=runs.order) == names != sorted(names)


def test_a_newest_run_that_has_ended_no_round_leaves_nothing_to_resume(begin, tmp_path):
    older, newest = begin("20260101-120000"), begin("20260102-120000", ended=False)
    assert resumed(tmp_path) not in (older, newest)


def test_what_latest_names_and_is_gone_is_said(begin, tmp_path):
    begin("20260101-120000")
    begin("20260102-120000").rename(tmp_path / "elsewhere")
    with pytest.raises(FederationError, match="latest names 20260102-120000, which is gone"):
        resumed(tmp_path)


def test_without_latest_one_run_is_the_newest_and_of_several_nobody_knows(begin, tmp_path):
    """A copy may have lost the link."""
    only = begin("20260101-120000")
    (only.parent / "latest").unlink()
    assert resumed(tmp_path) == only
    begin("20260102-120000")
    (only.parent / "latest").unlink()
    with pytest.raises(FederationError, match="latest is no link to the newest run; make it one"):
        resumed(tmp_path)
    (only.parent / "latest").mkdir()
    with pytest.raises(FederationError, match="latest is no link"):
        resumed(tmp_path)
