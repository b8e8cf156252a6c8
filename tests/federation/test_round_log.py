"""The file of a run's records only grows, and a state names the part that belongs to it."""

import json
import shutil
from types import SimpleNamespace

import pytest

from evidence.benchmarks import records
from shared_components.federation.messages import FederationError
from shared_components.federation.runs.run_folder import server_files
from shared_components.federation.runs.store import RECORDS
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.server.state import RoundLog, ServerState
from tests.federation.conftest import make_job, same


@pytest.fixture
def toy_job(toy_bundle):
    return make_job("fedavg", rounds=3)


def without_seconds(path):
    """Return the records of a file without what differs from run to run."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in r.items() if k not in ("seconds", "seconds_wall", "memory_mb")} for r in records]


def test_each_round_appends_its_records(federate, toy_job):
    server = federate(toy_job)
    path, before = server.server.folder / "server" / RECORDS, b""
    for round in (1, 2, 3):
        server.run(until=round)
        content = path.read_bytes()
        assert content.startswith(before) and content[len(before) :].count(b"\n") == 4  # three sites, one aggregation
        before = content
    server.finish()
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize("killed", ["before the state", "within the records"])
def test_a_kill_while_a_round_is_saved_loses_nothing(federate, toy_job, tmp_path, killed):
    plain = federate(toy_job, folder=tmp_path / "plain").run().finish()
    broken = federate(toy_job, folder=tmp_path / "broken").run(until=2)
    folder = broken.server.folder
    server_files(folder).path(1).unlink()  # round 2 was not saved, its records were
    if killed == "within the records":
        path = folder / "server" / RECORDS
        path.write_bytes(path.read_bytes()[:-30])

    resumed = federate(toy_job, folder=tmp_path / "broken", resume=True)
    assert resumed.resumed and resumed.server.state.round == 1
    resumed.run().finish()
    assert same(resumed.weights(), plain.weights())
    paths = [run.server.folder / "server" / RECORDS for run in (resumed, plain)]
    assert without_seconds(paths[0]) == without_seconds(paths[1])


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing"])
def test_records_that_are_not_those_of_the_state_are_refused(federate, toy_job, tmp_path, damage):
    path = federate(toy_job).run(until=1).server.folder / "server" / RECORDS
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if damage == "shorter" else content.replace(b"site-2", b"site-3"))
    with pytest.raises(FederationError, match=rf"{path} is not the file that the state was saved with"):
        federate(toy_job, resume=True)


def test_a_run_whose_states_contain_the_records_goes_on(federate, toy_job, tmp_path):
    plain = federate(toy_job, folder=tmp_path / "plain").run(until=2)
    old = tmp_path / "old"
    shutil.copytree(tmp_path / "plain", old, symlinks=True)
    files = server_files(old / plain.server.folder.relative_to(tmp_path / "plain"))
    for round, (tensors, values) in {round: files.read(round) for round in files.rounds()}.items():
        rounds = [record for record in plain.server.records if record["round"] <= round]
        del values["log"]
        files.save(round, tensors, {**values, "records": rounds})

    plain.run().finish()
    resumed = federate(toy_job, folder=old, resume=True)
    assert resumed.server.records == plain.server.records[:8]
    resumed.run().finish()
    assert same(resumed.weights(), plain.weights())
    paths = [run.server.folder / "server" / RECORDS for run in (resumed, plain)]
    assert without_seconds(paths[0]) == without_seconds(paths[1])


def test_records_beyond_the_limit_of_a_state_files_header_are_saved_and_read(tmp_path):
    """Safetensors limits a header to 100 MB, which the records of 1,560 rounds of 64 sites exceed."""
    log = RoundLog(tmp_path / RECORDS, SimpleNamespace())
    record = {"kind": "site", "round": 0, "site": "site-1", "text": "x" * 900}
    for round in range(110):
        log.close(*({**record, "round": round} for _ in range(1000)))
        log.write()
    assert (tmp_path / RECORDS).stat().st_size > 100_000_000

    files = server_files(tmp_path)
    files.save(109, *ServerState([], {}, round=110).pack(log.mark))
    assert files.path(109).stat().st_size < 10_000
    again = RoundLog(tmp_path / RECORDS, SimpleNamespace())
    again.restore(files.read(109)[1])
    assert again.records == log.records and again.mark == log.mark


@pytest.mark.slow
def test_more_than_101000_records_cost_as_much_in_the_last_round_as_in_the_tenth(tmp_path):
    """And a server resumes from all of them: 64 sites, 1,600 rounds."""
    server = records.small_server(tmp_path, sites=64, rounds=1600)
    costs = {cost.round: cost for cost in records.play(server, 1590, costs_of=(10, 100, 1000, 1590))}
    written = [cost.written for cost in costs.values()]
    path = tmp_path / "server" / RECORDS
    assert len(written) == 4 and max(written) < 1.02 * min(written) < path.stat().st_size / 100, "no file is rewritten"
    lines, growth = path.read_text().count("\n"), path.stat().st_size / 1590
    assert lines == 65 * 1590 > 101_000 and growth < min(written)

    again = ServerRunner(server.job, server.state.sites, tmp_path)
    assert again.resume() and again.state.round == 1590 and again.records == server.records
    assert not [*records.play(again, 1600)] and not [*records.play(server, 1600)]  # the second truncates the file
    assert same(again.state.models.shared, server.state.models.shared)
    assert path.read_text().count("\n") == 65 * 1600
