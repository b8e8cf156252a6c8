"""A network of another library in a federation: equivalences, what stays at a site, refusals before the first step."""

import json
import re
from pathlib import Path

import pytest
import torch

from shared_components.core import training as local
from shared_components.core.losses import segmentation_loss
from shared_components.core.task import make_task
from shared_components.core.trained_model import load_trained
from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError
from shared_components.networks.adapter import check_outputs
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from shared_components.networks.network_class import MONAI_NETWORKS, VARIABLE
from tests.federation.conftest import SITES, TINY, make_job, same
from tests.networks import own

SMALL = {"class": f"{own.HERE}.Small"}
PLANE = {"spatial_dims": 2, "in_channels": 3}
NARROW = {"channels": [4, 8, 16], "strides": [2, 2]}
MONAI = {
    "AttentionUnet": NARROW,
    "BasicUNet": {"features": [4, 4, 8, 8, 8, 4]},
    "MedNeXt": {"init_filters": 4, "blocks_down": [1, 1, 1, 1], "blocks_up": [1, 1, 1, 1]},
    "SegResNet": {"init_filters": 8, "blocks_down": [1, 1, 1], "blocks_up": [1, 1]},
    "SegResNetDS": {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]},
    "SwinUNETR": {"feature_size": 12, "depths": [1, 1, 1, 1]},
    "UNet": NARROW,
    "UNETR": {"img_size": [64, 96], "feature_size": 4, "hidden_size": 24, "mlp_dim": 24, "num_heads": 4},
}
TRAINED = ("BasicUNet", "SegResNet", "SwinUNETR")  # by every method below
METHODS = ("fedavg", "fedper", "fedbn", "ditto", "fedrep")


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    names = [f"{own.HERE}.{name}" for name, value in vars(own).items() if isinstance(value, type)]
    monkeypatch.setenv(VARIABLE, ",".join(["monai", *names]))


def trained(federate, method, network, *, sites=2, **changes):
    federation = federate(make_job(method, network=network, **changes), names=SITES[:sites])
    return federation.run()


def test_with_one_site_fedavg_is_a_plain_loop_that_never_heard_of_a_federation(federate, scenes):
    trained_weights = trained(federate, "fedavg", SMALL | {"width": 8}, sites=1).weights()
    site = load_site(scenes[0])
    settings = make_job("fedavg").open_bundle().training
    torch.manual_seed(settings.seed)
    network = own.Small(num_classes=len(site.classes), width=8).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=settings.weight_decay, fused=True)
    data = SampleDataset(samples(site, "train"), height=32, width=64, site=site)
    task = make_task("segmentation", classes=site.classes)
    for round in range(2):
        context = local.make_context(settings, task, round=round, rounds=2, site=0)
        for batch in batches(data, batch_size=2, iterations=2, generator=context.generator, augment=True):
            optimizer.zero_grad()
            segmentation_loss(network(batch["image"]), batch["label"]).backward()
            optimizer.step()
    assert same({f"site-1/{name}": value for name, value in network.state_dict().items()}, trained_weights)


@pytest.mark.parametrize(
    ("method", "stays"),
    [
        ("fedavg", set()),
        ("fedper", {"last.weight", "last.bias"}),
        ("fedrep", {"last.weight", "last.bias"}),
        ("fedbn", {f"body.1.{name}" for name in torch.nn.BatchNorm2d(1).state_dict()}),
    ],
)
def test_what_a_method_keeps_at_home_never_leaves_and_differs_from_site_to_site(federate, method, stays):
    federation = federate(make_job(method, network=SMALL), names=SITES[:2])
    sent = federation.replies()
    federation.enrol()
    while federation.asked.task == "round":
        sent = federation.replies()
        for reply in sent.values():
            assert set(reply.pieces) == set(own.Small(num_classes=4).state_dict()) - stays
        federation.send(sent)
    federation.finish()
    models = [load_weights(federation.files(site).folder / "model.safetensors") for site in SITES[:2]]
    differ = {name for name in models[0] if not torch.equal(models[0][name], models[1][name])}
    assert differ == stays - {"body.1.num_batches_tracked"}


def test_a_models_header_names_its_network_and_the_model_opens_without_the_job(federate):
    federation = trained(federate, "fedavg", SMALL | {"width": 8}).finish()
    path = federation.files("site-1").folder / "model.safetensors"
    assert json.loads(load_metadata(path)["network"]) == {**SMALL, "width": 8}
    model = load_trained(path, bundle="pvt_fpn")
    assert type(model.network) is own.Small and model.size == (32, 64)
    assert same(model.network.state_dict(), load_weights(path))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("Halved", {}, r"Halved returns \[2, 4, 16, 32\] in training .* the task reads \[2, 4, 32, 64\]"),
        ("Eights", {"training": TINY | {"height": 36}}, "does not take frames .* training.height: 32 and"),
        ("Nothing", {}, "Nothing has no parameters"),
        ("Plain", {"method": "fedbn"}, "Plain has no normalisation layers to keep at the site"),
        ("Small", {"method": "pfedsis"}, "pfedsis needs a network with a shared and a personal path"),
        ("Small", {"training": TINY | {"start": "rendered"}}, "'pvt_fpn' ships no weights for Small; write start"),
        ("Small", {"tasks": {"segmentation": {"frames": 2, "interval": 0.1}}}, "Small takes single ones"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_is_refused_before_the_first_step(federate, name, changes, sentence):
    changes = dict(changes)
    method = changes.pop("method", "fedavg")
    own_arguments = {"arguments": {"sensitivity_images": 2}} if method == "pfedsis" else {}
    job = make_job(method, bundle="pvt_fpn", network={"class": f"{own.HERE}.{name}"}, **{**own_arguments, **changes})
    federation = federate(job, names=SITES[:2])
    with pytest.raises(FederationError, match=sentence) as error:
        federation.enrol()
    assert "\n" not in str(error.value) and federation.server.state.round == 0


def test_a_site_whose_owner_has_not_allowed_the_class_takes_no_part(federate, monkeypatch):
    federation = federate(make_job("fedavg", network=SMALL), names=SITES[:2])
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(FederationError, match=f"^site site-1: network: class .* set {VARIABLE}={own.HERE}.Small"):
        federation.enrol()


@pytest.mark.slow
@pytest.mark.parametrize("name", MONAI_NETWORKS)
def test_every_network_of_monais_that_is_listed_can_be_built_run_and_saved(name, tmp_path):
    network = build_network({"_target_": name, **PLANE, **MONAI[name]}, out_channels=3)
    check_outputs(network, channels=3, size=(64, 96))
    save_weights(tmp_path / "model.safetensors", network.state_dict(), {})
    assert same(load_weights(tmp_path / "model.safetensors"), network.state_dict())
    assert set(MONAI) == set(MONAI_NETWORKS)


def test_the_document_lists_the_networks_of_monais_that_may_be_named():
    text = (Path(__file__).parents[2] / "docs/how-to/add-a-network.md").read_text()
    listed = re.search(r"leave it out\.\s(`AttentionUnet`.*?) may be named", text, re.DOTALL)
    assert listed and tuple(re.findall(r"`(\w+)`", listed[1])) == MONAI_NETWORKS


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TRAINED)
def test_monais_networks_train_with(federate, name, method):
    federation = trained(federate, method, {"class": name, **PLANE, **MONAI[name]}, rounds=1).finish()
    path = federation.files("site-1").folder / "model.safetensors"
    assert json.loads(load_metadata(path)["network"])["class"] == f"monai.networks.nets.{name}"
    assert load_trained(path, bundle="pvt_fpn").task.channels == 4
