"""Features of a federation besides averaging: absences, a fraction of the sites, profile items that
may be refused, and the model that a held-out site gets."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.method import load_method
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.server.client_sampling import sample_clients
from shared_components.flare.results import leave_result
from shared_components.networks.checkpoints import load_metadata
from tests.federation.conftest import SITES, Federation, empty, make_job, rewritten, same


def skip_round_one(federation):
    """Let site-2 answer round 0, miss round 1 and be asked for round 2."""
    federation.enrol()
    federation.send(federation.replies())
    federation.send(federation.replies(["site-1", "site-3"]), {"site-2": "its line was down"})
    return federation


@pytest.mark.parametrize("method", ["fedper", "ditto"])
def test_a_site_that_was_absent_keeps_what_is_its_own_when_a_round_is_asked_again(federate, method, job_on_toy):
    """It answers rounds 0 and 2, the server dies before it aggregates round 2, and asks it once more."""
    job = job_on_toy(method, rounds=3, min_sites=2)
    first = skip_round_one(federate(job)).replies(["site-2"])["site-2"]
    again = federate(job, resume=True).enrol()
    assert again.server.state.round == 2
    second = again.replies(["site-2"])["site-2"]
    assert same(first.pieces, second.pieces) and first.header["metrics"] == second.header["metrics"]
    best = again.files("site-2").load()[2]["best"]
    assert best  # what it had found before its absence is not forgotten


def test_a_site_whose_state_is_gone_refuses_instead_of_beginning_anew(federate, job_on_toy):
    for federation, number in (  # the second has an older state than its last counted round
        (skip_round_one(federate(job_on_toy("fedper", rounds=3, min_sites=2))), 1),
        (federate(job_on_toy("fedper", rounds=3)).run(until=2), 2),
    ):
        name = f"round-{number - 1:05d}"
        (federation.server.folder / "site-2" / f"{name}.safetensors").unlink()
        with pytest.raises(SiteRefusal, match=rf"site-2: its state of round {number} is gone from .*put {name}.* back"):
            federation.replies(["site-2"])


def test_a_round_asks_a_fraction_of_the_sites_and_the_same_ones_after_a_resume(federate, tmp_path, job_on_toy):
    job = job_on_toy("fedavg", rounds=4, client_fraction=0.5)
    straight = federate(job, folder=tmp_path / "a").run_leaving(tmp_path / "b", round=2, trained=())
    drawn = [record["drawn"] for record in straight.server.records if record["kind"] == "aggregation"]
    assert all(len(sites) == 2 for sites in drawn) and len(set(map(tuple, drawn))) > 1  # 0.5 x 3, halves up
    again = federate(job, folder=tmp_path / "b", resume=True).run()
    assert same(straight.weights(), again.weights())
    asked = [r["site"] for r in straight.server.records if r["kind"] == "site" and r["round"] == 0]
    assert asked == drawn[0]
    straight.finish()  # the last delivery is for everybody
    assert all((straight.server.folder / site / "model.safetensors").is_file() for site in SITES)


def test_a_draw_asks_everybody_of_the_whole_as_many_as_a_method_needs_and_each_in_its_turn():
    def draw(fraction, names, round, **known):
        return sample_clients(names, round, fraction=fraction, seed=2022, **known)

    names = [f"s{i}" for i in range(8)]
    assert draw(1, names, 3) == draw(0.94, names, 3) == names
    assert len(draw(0.01, names, 0)) == 1 and len(draw(0.01, names, 0, least=4)) == 4
    turns = [name for round in range(200) for name in draw(0.25, names, round)]
    assert all(30 <= turns.count(name) <= 75 for name in names)  # 50 each on average
    for fraction, sites, asked in (  # rounded to the nearest number, halves up
        (0.67, 3, 2), (0.66, 3, 2), (0.34, 3, 1), (0.33, 3, 1), (0.5, 3, 2), (0.49, 3, 1), (0.1, 3, 1), (0.84, 3, 3),
        (0.35, 10, 4), (0.34, 10, 3), (0.01, 1000, 10), (0.0149, 1000, 15), (0.5, 1, 1),
    ):  # fmt: skip
        assert len(draw(fraction, [f"s{i}" for i in range(sites)], 0)) == asked


def test_the_log_says_how_many_sites_a_round_asks(federate, job_on_toy, caplog):
    with caplog.at_level("INFO"):
        federate(job_on_toy("fedavg", rounds=1)).run()
        assert "sites (client_fraction" not in caplog.text
        federate(job_on_toy("fedavg", rounds=1, client_fraction=0.67)).run()
    assert "round 1 asks 2 of 3 sites (client_fraction)" in caplog.text


def test_an_item_that_a_site_refuses_is_none_for_all_and_the_others_are_there(play, federate, scenes, tmp_path):
    seen = []

    def objective(network, batch, context):
        seen.append(context.items)
        return load_method("fedavg").local.objective(network, batch, context)

    play(requires_optional_items=frozenset({"style", "text"}), local_objective=objective)
    open_site = rewritten(scenes[0], tmp_path / "open", publish=["style", "text"])
    closed = rewritten(scenes[1], tmp_path / "closed", publish=[])
    Federation(make_job("fedavg", rounds=1), tmp_path / "runs", [open_site, closed], ("a", "b")).run()
    style, text = seen[0]["style"], seen[0]["text"]
    assert style[1] is None and text[1] is None and text[0].startswith("synthetic")
    assert [len(row) for row in style[0]] == [3, 3] and all(0 <= v <= 1 for row in style[0] for v in row)


def test_a_method_for_another_kind_of_task_refuses_by_one_sentence(play, federate, job_on_toy):
    play(requires_kinds=("depth",))
    with pytest.raises(FederationError, match="fedavg is for depth, and the site's task is segmentation"):
        federate(job_on_toy("fedavg")).enrol()


def held_out_model_of(federation):
    record = next(r for r in reversed(federation.server.records) if r["kind"] == "outsider")
    return record, federation.server.folder / "server" / "model.safetensors"


def test_where_all_is_global_or_the_method_says_it_the_held_out_site_gets_that_model(publishing, job_on_toy, play):
    federation = publishing(job_on_toy("fedavg", rounds=1), ["style"], ["style"], ["style"]).run().finish()
    record, path = held_out_model_of(federation)
    assert same(load_file(path), federation.server.state.models.shared) and record["sites"] == []
    assert load_metadata(path)["bundle"] == "toy" and load_metadata(path)["task"] == "segmentation"
    play(server_held_out_model=lambda models, samples: {n: v * 0 for n, v in models[0].items()})
    federation = publishing(job_on_toy("fedavg", rounds=1), ["model"], ["model"], ["model"]).run().finish()
    assert all(value.abs().sum() == 0 for value in load_file(held_out_model_of(federation)[1]).values())


def test_of_personal_models_a_held_out_site_gets_the_mean_of_those_that_consent(publishing):
    """FedPer: site-3 does not consent; the other two have 4 frames each, so that the mean is plain."""
    federation = publishing(make_job("fedper", rounds=1), ["model"], ["model"], []).run().finish()
    record, path = held_out_model_of(federation)
    own = [load_file(federation.server.folder / site / "model.safetensors") for site in SITES[:2]]
    for name, value in load_file(path).items():
        expected = ((own[0][name].double() + own[1][name].double()) / 2).float()
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-7)
    assert record["sites"] == ["site-1", "site-2"]


def test_a_site_may_give_its_own_model_to_the_result_and_no_mean_is_made_of_it(publishing, tmp_path, job_on_toy):
    federation = publishing(job_on_toy("fedper", rounds=1), ["result"], [], ["model"]).run().finish()
    record, path = held_out_model_of(federation)
    assert record["sites"] == ["site-3"]
    single = federation.server.folder / "server" / "sites"
    assert [file.name for file in single.iterdir()] == ["site-1.safetensors"]
    own = federation.server.folder / "site-1" / "model.safetensors"
    assert same(load_file(single / "site-1.safetensors"), load_file(own))
    assert load_metadata(single / "site-1.safetensors")["site"] == "site-1"
    assert same(load_file(path), load_file(federation.server.folder / "site-3" / "model.safetensors"))
    (tmp_path / "page.html").write_text("a page")
    result = leave_result(federation.server.folder, tmp_path / "page.html", tmp_path / "result")
    models = sorted(str(file.relative_to(result)) for file in result.rglob("*.safetensors"))
    assert models == ["models/server/model.safetensors", "models/site-1/model.safetensors"]


def test_a_model_whose_consent_was_withdrawn_before_a_second_finish_is_gone(publishing, job_on_toy, scenes, tmp_path):
    federation = publishing(job_on_toy("fedper", rounds=1), ["result", "model"], [], []).run()
    with pytest.raises(FederationError, match="site-2: its process died"):
        federation.send(federation.replies(["site-1"]), {"site-2": "its process died"})
    folder = federation.server.folder / "server"
    assert (folder / "sites" / "site-1.safetensors").is_file() and (folder / "model.safetensors").is_file()
    silent = [rewritten(path, tmp_path / f"silent-{i}", publish=[]) for i, path in enumerate(scenes)]
    job = job_on_toy("fedper", rounds=1)
    resumed = Federation(job, tmp_path / "runs", silent, SITES, resume=True).run().finish()
    assert resumed.server.folder / "server" == folder and held_out_model_of(resumed)[0]["files"] == {}
    assert not (folder / "sites").exists() and not (folder / "model.safetensors").exists()


def test_personal_models_stay_at_home_without_consent(publishing, job_on_toy):
    federation = publishing(job_on_toy("fedper", rounds=1), [], [], []).run()
    replies = federation.replies()
    assert all(empty(reply) for reply in replies.values())
    with pytest.raises(StopIteration):
        federation.send(replies)
    record, path = held_out_model_of(federation)
    assert record["files"] == {} and not path.exists()
