"""SurgFed's parts, its ablations, and what leaves and reaches a site in whole federations of a tiny network."""

import json

import pytest
import torch
from torch import nn

from shared_components.core.aggregators.language_guided import LanguageGuided
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.core.partition_rules import modules
from shared_components.data.collate import collate
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.server import runner as server_side
from shared_components.federation.setup import site_setup as site_side
from shared_components.networks.checkpoints import load_weights
from shared_components.networks.parts import freeze
from shared_components.networks.protocols import require
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.scenes.site import write_site
from tests.changed_method import changed
from tests.federation.conftest import SITES, VIDEOS, Federation, make_job, rewritten, same, toy_bundle  # noqa: F401
from tests.networks.conftest import TOY

MEMORY = {"memory_attention", "memory_encoder", "object_pointer"}
FIXED = ["image_encoder", "prompt_encoder"]
OWN = {"depth_head", "selection", "indicator"}


class Parts(nn.Module):
    """The parts of the video network, a number each."""

    def __init__(self):
        super().__init__()
        names = [*FIXED, *sorted(MEMORY), "mask_decoder", "depth_head", "selection"]
        for name in names:
            self.add_module(name, nn.Linear(1, 1))
        self.register_buffer("indicator", torch.zeros(3))
        self.parts = {name: (name,) for name in [*names, "indicator"]} | {"top": ("depth_head",)}


def roles(method, **arguments):
    network = Parts()
    freeze(network, FIXED)
    partition = partition_network(network, load_method(method, **arguments).partition)
    return {r: {p.tensor.partition(".")[0] for p in partition if p.role is r} for r in partition.roles}


@pytest.mark.parametrize("method, arguments, role, shared", [
    ("surgfed", {}, Role.MIXED, MEMORY | {"mask_decoder"}), ("surgfed", {"aggregated": "memory"}, Role.MIXED, MEMORY),
    ("surgfed", {"aggregated": "decoder"}, Role.MIXED, {"mask_decoder"}),
    ("surgfed", {"lha": False}, Role.GLOBAL, MEMORY | {"mask_decoder"}),
    ("fedavg", {"personal": sorted(OWN)}, Role.GLOBAL, MEMORY | {"mask_decoder"}),
    ("fedprox", {"personal": sorted(OWN)}, Role.GLOBAL, MEMORY | {"mask_decoder"}),
    ("fedrep", {"personal": ["mask_decoder", *sorted(OWN)]}, Role.GLOBAL, MEMORY),
    ("fedavg_cluster", {"group": "kind", "personal": sorted(OWN)}, Role.MIXED, MEMORY | {"mask_decoder"}),
    ("mat_fl", {"shared": sorted(MEMORY)}, Role.MIXED, MEMORY),
    ("fedhca2", {"encoder": sorted(MEMORY), "decoders": ["mask_decoder"]}, Role.MIXED, MEMORY | {"mask_decoder"}),
])  # fmt: skip
def test_the_video_networks_parts_have_these_roles(method, arguments, role, shared):
    """Of SurgFed and of its baselines, which take the memory modules for the encoder."""
    rest = (MEMORY | OWN | {"mask_decoder"}) - shared
    assert roles(method, **arguments) == {Role.FIXED: set(FIXED), role: shared, Role.LOCAL: rest}


def test_a_network_needs_a_memory_and_arguments_reach_the_aggregator():
    with pytest.raises(ValueError, match=r"surgfed needs a network with a memory of objects.*Linear does not qualify"):
        require(nn.Linear(1, 1), load_method("surgfed").requires.network, "surgfed")
    require(Parts(), load_method("surgfed").requires.network, "surgfed")

    def of(**arguments):
        return load_method("surgfed", **arguments).server.aggregator

    assert of() == LanguageGuided("plain", "own", 0.1, 1e-3, 0.0, 0, False)
    assert of(mode="as_released") == LanguageGuided(decay=0.99, released=True)
    assert of(mode="as_released", weight_decay=0).decay == 0 and of(weight_decay=0.5).decay == 0.5
    chosen = of(attention="cosine", texts="shuffled", psi=0, hyper_rate=0.1, seed=7)
    assert chosen == LanguageGuided("cosine", "shuffled", 0, 0.1, 0, 7) and of(lha=False) == WeightedMean()


def test_a_text_is_asked_for_only_where_the_gate_reads_it_and_by_an_encoder_of_its_own():
    for arguments in ({"lha": False}, {"texts": "none"}):
        method = load_method("surgfed", **arguments)
        assert not method.requires.optional_items and not method.local.items
    method = load_method("surgfed", text_encoder="random", lha_encoder="one_hot")
    assert method.requires.optional_items == {"text_vector"} == set(method.local.items)
    assert method.local.items["text_vector"].__self__.kind == "one_hot"
    assert load_method("surgfed", text_encoder="random").local.items["text_vector"].__self__.kind == "random"


@pytest.fixture
def surgfed(toy_bundle, monkeypatch, tmp_path, scenes):  # noqa: F811
    """Return a function that makes a federation of three sites in which `Tiny` without its head is MIXED."""

    def make(*sites, rounds=3, **arguments):
        rule = modules(["encoder", "decoder"], inside=Role.MIXED, outside=Role.LOCAL)
        method = changed(load_method("surgfed", **arguments), partition=rule, requires_network=None)
        for side in (server_side, site_side):
            monkeypatch.setattr(side, "load_method", lambda name, **_: method)
        paths = [rewritten(scenes[n], tmp_path / f"own-{n}", **own) for n, own in enumerate(sites)]
        job = make_job("fedavg", bundle="toy", training={"iterations": 1}, rounds=rounds)
        return Federation(job, tmp_path / "runs", paths, SITES)

    return make


PUBLIC, PRIVATE = {"publish": ["text_vector"]}, {"publish": ["style"]}
TWO, THREE = {"classes": "shaft_manipulator"}, {"classes": "parts"}


def aggregations(federation):
    return [r for r in federation.server.records if r["kind"] == "aggregation"]


def test_sites_of_several_tasks_train_and_a_site_without_a_text_takes_part(surgfed):
    """The rendered sites' texts have vectors in SurgFed's wording with the labels of their data set alone."""
    federation = surgfed(PUBLIC | THREE, PRIVATE | TWO, PUBLIC | THREE).run().finish()
    first, *_, last = aggregations(federation)
    assert first["psi"] == dict.fromkeys(SITES, pytest.approx(0.1)) and last["psi"] != first["psi"]
    assert all(record["without_text"] == ["site-2"] for record in aggregations(federation))
    assert 0.99 < last["entropy"]["attention"] <= 1
    mixed = federation.server.state.models.mixed
    assert not any(name.startswith("head") for name in mixed["site-1"]) and not same(mixed["site-1"], mixed["site-2"])


def test_a_text_vector_reaches_the_server_and_no_other_site(surgfed):
    federation = surgfed(PUBLIC, PUBLIC, PRIVATE, rounds=1)
    replies = federation.replies()
    assert [len(replies[site].header["items"].get("text_vector", {}).get("values", [])) for site in SITES] == [
        384,
        384,
        0,
    ]
    federation.send(replies)
    assert all(message.header["items"] == {} for message in federation.asked.messages.values())
    written = json.loads(next(federation.server.folder.glob("site-1/what-leaves.json")).read_text())
    (item,) = [part for part in written["parts"] if part["name"] == "text_vector"]
    assert item["leaves"] and "may refuse it" in item["why"] and "at most 4096 numbers" in item["form"]


def test_vectors_of_two_encoders_do_not_compare(surgfed):
    federation = surgfed(PUBLIC, PUBLIC, PUBLIC)
    replies = federation.replies()
    replies["site-2"].header["items"]["text_vector"]["values"].append(0.5)
    with pytest.raises(FederationError, match=r"differ in their text vectors' encoder .* 385 numbers"):
        federation.send(replies)


@pytest.mark.parametrize("own, words", [
    ({"text": ""}, r"own-1/site\.yaml: site site-2: the site's text is ''; describe the site in words"),
    ({"text": "liver resection"}, r"own-1/site\.yaml: site site-2: vectors\.safetensors has no vector of the text"),
])  # fmt: skip
def test_a_missing_text_is_refused_before_the_first_round_by_one_sentence(surgfed, own, words):
    with pytest.raises(FederationError, match=words) as error:
        surgfed(PUBLIC, PUBLIC | own, PUBLIC).enrol()
    assert "\n" not in str(error.value)


def test_a_resumed_federation_ends_with_the_same_bits(surgfed, tmp_path):
    straight = surgfed(PUBLIC, PUBLIC, PRIVATE).run()
    sites, job = [tmp_path / f"own-{n}" / "site.yaml" for n in range(3)], straight.server.job
    Federation(job, tmp_path / "again", sites, SITES).run(until=2)
    resumed = Federation(job, tmp_path / "again", sites, SITES, resume=True).run()
    assert resumed.resumed and same(straight.server.state.aggregator, resumed.server.state.aggregator)
    assert same(straight.weights(), resumed.weights())


@pytest.fixture
def two_tasks(tmp_path, monkeypatch):
    """Return the sites' site.yaml by name, and a job of SurgFed's network with half a million numbers."""
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    sizes = {"videos": VIDEOS, "frames_per_video": 2, "height": 64, "width": 64, "look": "rose", "seed": 1}
    layouts = {"site-1": ("endovis2017", "segmentation"), "site-2": ("scared", "depth")}
    sites = {site: write_site(tmp_path / site, layout=of, task=task, **sizes) for site, (of, task) in layouts.items()}
    training = {"height": 64, "width": 64, "batch_size": 1, "epochs": 2, "learning_rate": 1e-3}
    return sites, make_job("surgfed", training=training, network={"size": 64}, rounds=2)


def with_a_loss(job, site):
    """Return the tensors that the loss of any training clip has a gradient by, and the first weights."""
    bench = site_side.set_up_site(job, site)
    bench.condition_on_site(name=site.name, number=0, count=2)
    for item in bench.dataset(samples(site, "train", bench.task.spec)):
        batch = bench.task.add_randomness(collate([item]), torch.Generator().manual_seed(0))
        bench.task.loss(bench.task.predict(bench.network, batch), batch).backward()
    moving = {n for n, p in bench.network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    return moving, bench.network.state_dict(), bench.partition


def test_every_tensor_with_a_loss_moves_and_no_other_and_selection_and_depth_head_survive(two_tasks, tmp_path):
    """What a site shares may also move by the other site's changes."""
    sites, job = two_tasks
    federation = Federation(job, tmp_path / "runs", sites.values(), sites).run(until=1)
    known = {name: with_a_loss(job, load_site(path, name=name)) for name, path in sites.items()}
    mixed = set(known["site-1"][2].with_roles(Role.MIXED))
    anywhere = known["site-1"][0] | known["site-2"][0]
    trained = {name: federation.files(name).load(before=1)[1] for name in sites}
    for name, message in federation.asked.messages.items():  # what the aggregation gives the site, and its own state
        bench, _ = federation.sites[name]._restore(parse_request("round", message), load_site(sites[name], name=name))
        moving, first, _ = known[name]
        now = bench.network.state_dict()
        assert {n for n in now if not torch.equal(now[n], first[n])} == moving - mixed | anywhere & mixed
        local = {n.removeprefix("local/"): v for n, v in trained[name].items() if n.startswith("local/")}
        assert {"selection.gate.weight", "depth_head.weight"} < set(local)
        assert all(torch.equal(now[n], value) for n, value in local.items())
    assert "depth_head.weight" in known["site-2"][0] - known["site-1"][0]
    assert "selection.gate.weight" in known["site-1"][0] & known["site-2"][0]
    federation.run().finish()
    models = [load_weights(federation.server.folder / name / "model.safetensors") for name in sites]
    different = {n for n in models[0] if not torch.equal(models[0][n], models[1][n])}
    assert different - {"indicator"} == anywhere  # encoders are alike, and everything else each site's own
