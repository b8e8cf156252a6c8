"""A copy of a run, made file by file while a round ends: it resumes to equal bits, or a sentence names the file."""

import json
import shutil

import pytest

from shared_components.cli import main
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.runs.run_check import check_run
from shared_components.federation.runs.store import RoundFiles, rounds_in
from tests.federation.conftest import SITES, make_job, same


@pytest.fixture
def federate(toy_bundle, federate):
    return federate


def job(**changes):
    return make_job("fedper", bundle="toy", **{"rounds": 6, **changes})


def files_of(root):
    return [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]


def copy(paths, root, to):
    """Copy files one by one, as backup tools do; skip files that are gone."""
    for path in filter(lambda path: path.is_file(), paths):
        (to / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to / path.relative_to(root))


def is_state(path):
    return path.name.startswith("round-")


def is_records(path):
    return path.name == "rounds.jsonl"


@pytest.mark.parametrize("late", [is_state, lambda path: not is_state(path), is_records], ids=["states", "rest", "log"])
def test_a_copy_with_a_round_in_between_resumes_to_equal_bits_in_any_order(federate, tmp_path, late):
    source, to = tmp_path / "source", tmp_path / "copy"
    federation = federate(job(), folder=source).run(until=2)
    before = files_of(source)
    copy([path for path in before if not late(path)], source, to)
    federation.run(until=3)
    copy([path for path in {*before, *files_of(source)} if late(path)], source, to)
    again = federate(job(), folder=to, resume=True)
    assert again.resumed and again.server.state.round in (2, 3)
    assert same(again.run().weights(), federation.run().weights())


def test_records_that_are_two_rounds_older_than_the_states_are_named_by_the_server_and_the_check(
    federate, tmp_path, capsys
):
    source, to = tmp_path / "source", tmp_path / "copy"
    federation = federate(job(), folder=source).run(until=1)
    copy(filter(is_records, files_of(source)), source, to)
    federation.run(until=3)
    copy([path for path in files_of(source) if not is_records(path)], source, to)
    path = to / federation.server.folder.relative_to(source) / "server" / "rounds.jsonl"
    with pytest.raises(FederationError, match=rf"{path} is not the file that the state was saved with"):
        federate(job(), folder=to, resume=True)
    assert main(["runs", str(to / "test-fedper"), "--check"]) == 1
    assert f"{path} is not the file" in capsys.readouterr().out
    shutil.copy(federation.server.round_log._path, path)
    assert main(["runs", str(to / "test-fedper"), "--check"]) == 0
    assert same(federate(job(), folder=to, resume=True).run().weights(), federation.run().weights())


def test_a_best_model_older_than_the_sites_state_is_named(federate, tmp_path, capsys):
    """Otherwise the site would end with an older model under the name of the best."""
    federation = federate(job()).run(until=2)
    files, (_, tensors, values) = federation.files("site-2"), federation.files("site-2").load()
    files.save(1, tensors, {**values, "best": {**values["best"], "round": 5}})  # as if round 6 had the best
    again = federate(job(), resume=True).enrol()
    path = files.folder / "best.safetensors"
    with pytest.raises(SiteRefusal, match=rf"damaged, {path} is the best model of round \d, and .* of round 6"):
        again.replies(["site-2"])
    assert main(["runs", str(tmp_path / "runs"), "--check"]) == 1 and str(path) in capsys.readouterr().out
    path.unlink()
    with pytest.raises(SiteRefusal, match=rf"{path} cannot be read"):
        again.replies(["site-2"])


@pytest.mark.parametrize("lost", ["server", "site-2"])
def test_a_party_restored_from_a_copy_four_rounds_old_resumes_from_a_kept_round_to_equal_bits(federate, tmp_path, lost):
    runs = tmp_path / "runs"
    federation = federate(job(rounds=8, checkpoint_every=2)).run(until=2)
    folder = federation.server.folder
    shutil.copytree(folder / lost, tmp_path / "copy")
    federation.run(until=6)
    assert rounds_in(folder / "site-1") == [1, 3, 4, 5]
    shutil.rmtree(folder / lost)
    shutil.copytree(tmp_path / "copy", folder / lost)
    if lost != "server":
        newest = federate(job(rounds=8, checkpoint_every=2), resume=True).enrol()
        gone = r"site-2: .*round 6 is gone from .*has states after rounds 1, 2; put round-00005.safetensors back"
        with pytest.raises(SiteRefusal, match=gone):
            newest.replies(["site-2"])
    again = federate(job(rounds=8, checkpoint_every=2), resume="latest@2", folder=runs)
    assert again.server.state.round == 2
    straight = federate(job(rounds=8), folder=tmp_path / "straight").run()
    assert same(again.run().weights(), straight.weights())
    assert [r["round"] for r in again.server.records if r["kind"] == "aggregation"] == [*range(8)]


def test_without_kept_rounds_a_server_three_rounds_older_than_its_sites_is_refused_by_name(federate, tmp_path):
    federation = federate(job()).run(until=1)
    shutil.copytree(federation.server.folder / "server", tmp_path / "copy")
    federation.run(until=5)
    shutil.rmtree(federation.server.folder / "server")
    shutil.copytree(tmp_path / "copy", federation.server.folder / "server")
    again = federate(job(), resume=True).enrol()
    for site in SITES:
        with pytest.raises(SiteRefusal, match=rf"{site}: its state of round 1 is gone.*states after rounds 3, 4, 5"):
            again.replies([site])


@pytest.mark.parametrize(
    "resume, words",
    [("latest@9", "has no intact state after 9 rounds; it has states after 1, 2"), ("latest@0", "such as latest@20"),
     ("@2", "such as latest@20"), ("latest@x", "such as latest@20")],
)  # fmt: skip
def test_a_round_that_cannot_be_resumed_is_refused(federate, resume, words):
    federate(job()).run(until=2)
    with pytest.raises(FederationError, match=words):
        federate(job(), resume=resume)


def test_a_run_of_a_newer_version_is_refused(federate):
    path = federate(job()).run(until=1).server.folder / "run.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "version": "9.1", "job": {**values["job"], "warp": 2}}))
    with pytest.raises(FederationError, match=r"began with surgfl 9\.1, and this version has no setting 'warp'"):
        federate(job(), resume=True)


def test_the_check_names_each_missing_file_and_finds_every_round(federate, tmp_path, capsys):
    folder = federate(job(checkpoint_every=2)).run(until=5).server.folder
    checked = {party.name: (party.rounds, party.problems) for party in check_run(folder)}
    assert checked == {"server": ([2, 4, 5], []), **dict.fromkeys(SITES, ([2, 3, 4, 5], []))}
    (folder / "site-1" / "enrolled.json").unlink()
    cut = RoundFiles(folder / "site-2", of="").path(4)
    cut.write_bytes(cut.read_bytes()[:-9])
    shutil.rmtree(folder / "server")
    (folder.parent / "another-run").mkdir()
    assert main(["runs", str(tmp_path / "runs"), "--check"]) == 1
    text = capsys.readouterr().out
    for words in ("enrolled.json is missing", f"{cut} cannot be read", "the states, are missing"):
        assert words in text
    assert main(["runs", str(folder.parent / "another-run"), "--check"]) != 0
    (folder / "run.json").unlink()  # as at a site
    (folder / "site-3" / ".round-00009.safetensors.Ab3xYz").touch()  # of a copy that was interrupted
    assert main(["runs", str(tmp_path / "runs"), "--check"]) == 1 and str(cut) in capsys.readouterr().out
