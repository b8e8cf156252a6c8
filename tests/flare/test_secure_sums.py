"""Secure sums through FLARE: equal bits, the filter at the site, and the keys of startup kits."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
import torch
from cryptography import x509
from cryptography.x509.oid import NameOID
from safetensors.torch import load_file

from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Message, SiteRefusal
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.secure_sums.identity import Identity, Project, kit_identity
from shared_components.federation.secure_sums.job_section import MASKED, OPENED
from shared_components.federation.secure_sums.keys import public_of
from shared_components.flare.outgoing_check import check_reply
from tests.federation.conftest import Federation, job_on_toy, make_job, narrow_module, same, scenes  # noqa: F401 (fixtures)
from tests.flare.conftest import SITES

SECURE = {"threshold": 2}
JOB = make_job("fedavg", bundle="toy", rounds=1, secure_sums=SECURE)


def newest(run):
    return load_file(max((run / "server").glob("round-*.safetensors")))


@pytest.mark.slow
def test_a_run_through_the_serialiser_equals_a_run_in_process_bit_for_bit(by_hand, job_on_toy, scenes, tmp_path):  # noqa: F811
    controller = by_hand(secure_sums=SECURE).start()
    assert controller.panics == []
    tasks = [task.name for task in controller.sent]
    assert tasks == ["enrol"] * 3 + ["round"] * 3 + ["unmask"] * 3 + ["finish"] * 3
    job = job_on_toy("fedavg", rounds=1, secure_sums=SECURE)
    alone = run_together(job, dict(zip(SITES, scenes, strict=True)), tmp_path / "alone")
    assert same(newest(controller.server.folder), newest(alone.folder))


@pytest.fixture(scope="module")
def asked(tmp_path_factory, request, narrow_module):  # noqa: F811
    """Return a site's requests and answers in a round with secure sums, by task."""
    scenes = request.getfixturevalue("scenes")  # noqa: F811
    job = dataclasses.replace(JOB, bundle="pvt_fpn")
    federation = Federation(job, tmp_path_factory.mktemp("r"), scenes, SITES).enrol()
    exchanges = {}
    for task in ("round", "unmask"):
        replies = federation.replies()
        exchanges[task] = parse_request(task, federation.asked.messages["site-1"]), replies["site-1"]
        federation.send(replies)
    return exchanges, load_site(scenes[0])


def refused(message, question, site, words):
    with pytest.raises(ValueError, match=f"{words}.*nothing was sent"):
        check_reply(message, question, site)


def test_only_masked_pieces_and_the_shares_that_open_their_sum_leave(asked):
    exchanges, site = asked
    for question, reply in exchanges.values():
        check_reply(reply, question, site)
    question, reply = exchanges["round"]
    groups, masked = reply.groups, reply.groups[MASKED]
    name = next(iter(masked))
    bare = {piece: value.float() for piece, value in masked.items()}
    refused(Message(reply.header, bare), question, site, "permits no such tensors")
    refused(Message(reply.header, bare, groups), question, site, "permits no such tensors")
    refused(Message(reply.header, {}, {**groups, MASKED: bare}), question, site, "its masked piece .* is torch.float32")
    more = {**groups, MASKED: {**masked, "x": masked[name]}}
    refused(Message(reply.header, {}, more), question, site, "piece x is not")
    refused(Message(reply.header, {}, {**groups, "more": {}}), question, site, "it carries the groups")
    own = dict(groups["shares"]) | {"site-9": groups["shares"]["site-1"]}
    refused(Message(reply.header, {}, {**groups, "shares": own}), question, site, "its shares of site-9 are not due")
    plain = dataclasses.replace(question, job=make_job("fedavg"))
    refused(reply, plain, site, "fedavg does not declare tensor group masked")

    question, reply = exchanges["unmask"]
    opened = reply.groups[OPENED]
    refused(exchanges["round"][1], question, site, "unknown key")
    wide = torch.zeros(99, 33, dtype=torch.uint8)
    for owner, shares in (("site-1", torch.zeros(2, 33)), ("site-9", opened["site-1"]), ("site-1", wide)):
        refused(Message({}, {}, {OPENED: {owner: shares}}), question, site, f"the shares of {owner} do not open a sum")
    refused(Message({}, {}, {MASKED: masked}), question, site, "do not open a sum")
    refused(reply, dataclasses.replace(plain, task="unmask"), site, "permits no such tensors")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Return the startup folders that `nvflare provision` makes, and kits that the server's owner could build."""
    folder = tmp_path_factory.mktemp("kits")
    for words in (["-g"], ["-p", "project.yml", "-w", "ws"]):
        command = [sys.executable, "-m", "nvflare.cli", "provision", *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "ws").glob("*/prod_00")
    startup = {name: made / name / "startup" for name in ("site-1", "site-2", "server1", "admin@nvidia.com")}
    for name in ("server1", "root"):  # from the server's kit, or from the root's key
        kit = folder / name
        kit.mkdir()
        for file in ("rootCA.pem", "fed_client.json"):
            shutil.copy(startup["site-1"] / file, kit)
    shutil.copy(startup["site-1"] / "fed_client.json", startup["admin@nvidia.com"])
    for suffix in ("key", "crt"):
        shutil.copy(startup["server1"] / f"server.{suffix}", folder / "server1" / f"client.{suffix}")
    authority = json.loads((folder / "ws" / made.parent.name / "state" / "cert.json").read_text())
    (folder / "root" / "client.key").write_text(authority["root_pri_key"])
    (folder / "root" / "client.crt").write_text(authority["root_cert"])
    return startup | {"the server's as a site's": folder / "server1", "the root's": folder / "root"}


def federated(kits, folder, sites):
    """Return an enrolled federation of two sites with kits, and the request to its first site."""
    federation = Federation(JOB, folder, sites, SITES[:2])
    for name, runner in federation.sites.items():
        runner.identity = kit_identity(kits[name])
    return federation, federation.enrol().asked.messages["site-1"]


WHOSE = {"the server's as a site's": "the server", "admin@nvidia.com": "an administrator", "the root's": "an authority"}


@pytest.mark.usefixtures("toy_bundle")
@pytest.mark.parametrize("kit, whose", WHOSE.items())
def test_only_sites_join_a_sum(kits, tmp_path, scenes, kit, whose):  # noqa: F811
    """Otherwise a round of one hospital and the server's certificate would reveal that hospital's weights."""
    federation, asked = federated(kits, tmp_path, scenes)
    sums, liar = asked.header["sums"], Identity(kits[kit])
    name = x509.load_pem_x509_certificate((kits[kit] / "client.crt").read_bytes()).subject
    (name,) = (str(one.value) for one in name.get_attributes_for_oid(NameOID.COMMON_NAME))
    name = name.partition("@")[0]  # no site's name contains @
    run = f"{JOB.name}/{federation.server.folder.name}".encode()
    keys = {"site-1": sums["keys"]["site-1"], name: liar.sign(run, public_of(b"s" * 32))}
    lie = {**sums, "sites": ["site-1", name], "keys": keys}
    with pytest.raises(SiteRefusal, match=rf"the key of {name} is signed by ({whose}, and by no site|\[.*@)"):
        federation.answer("site-1", "round", Message(asked.header | {"sums": lie}, asked.pieces))
    federation.run()  # and an honest round goes on
    assert federation.server.last_record["secure_sum"] == ["site-1", "site-2"]


@pytest.mark.usefixtures("toy_bundle")
def test_a_site_with_another_sites_certificate_is_left_out(kits, tmp_path, scenes):  # noqa: F811
    """Otherwise all sites would refuse every round."""
    federation = Federation(dataclasses.replace(JOB, min_sites=2), tmp_path, scenes, SITES)
    federation.server.upload._project = Project(kits["server1"])
    for site, runner in federation.sites.items():
        runner.identity = kit_identity(kits[site if site in kits else "site-2"])  # the third has the second's kit
    federation.enrol()
    assert "the key of site-3 is signed by" in federation.server.left_out["site-3"]
    federation.run()
    assert federation.server.last_record["secure_sum"] == ["site-1", "site-2"]


def test_only_a_sites_kit_is_an_identity(kits):
    assert kit_identity(kits["server1"]) is None  # it has a server.key
    assert kit_identity(kits["site-1"])
