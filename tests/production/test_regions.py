"""Four sites in two regions: each connects only to its relay, and a killed relay costs no round and no bit."""

import json
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from evidence.production.at_start import REST
from evidence.production.deployment import until
from evidence.production.prepared import free_ports
from evidence.production.results import personal_model, records, rejected, wait_for_round
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job

pytestmark = pytest.mark.slow

REGIONS = {"north": ["hospital-a", "hospital-b"], "south": ["hospital-c", "hospital-d"]}
SITES = [site for sites in REGIONS.values() for site in sites]


@pytest.fixture
def regions(deploy_quick):
    """Return a running federation of two regions, whose sites rest before each training step."""
    ports = free_ports(len(REGIONS))
    described = [
        {"name": name, "organisation": "network", "host": "localhost", "port": port, "sites": sites}
        for (name, sites), port in zip(REGIONS.items(), ports, strict=True)
    ]
    deployment = deploy_quick(*SITES, change={"regions": described}, variables={REST: "2"})
    deployment.start(seconds=180)
    return deployment


def connected_to(party, ports):
    """Return which of the ports a party's processes are connected to."""
    own = [psutil.Process(pid) for pid in {party.pid, *party.job_pids()}]
    return {one.raddr.port for process in own for one in process.net_connections("tcp") if one.raddr} & {*ports}


def test_a_killed_relay_comes_back_in_the_round_and_the_models_equal_those_of_a_flat_run(
    regions, scenes, toy_bundle, tmp_path
):
    folder = regions.job("fedavg", rounds=4, regions=REGIONS)
    submitted = regions.submit(folder)
    wait_for_round(regions, "fedavg", 1, seconds=240)
    server = regions.federation.server.port
    listening = {region.name: region.port for region in regions.federation.regions}
    for region, sites in REGIONS.items():
        for party in (regions.nodes[region], *(regions.sites[site] for site in sites)):
            assert connected_to(party, {server, *listening.values()}) == {listening[region]}, party.name
        assert connected_to(regions.relays[region], {server}) == {server}
    relay = regions.relays["north"]
    relay.kill()
    before = len(records(regions, "fedavg"))
    time.sleep(5)
    assert len(records(regions, "fedavg")) == before, "a round ended without the region"
    relay.start()
    assert regions.wait(submitted, seconds=400) == "FINISHED:COMPLETED", regions.server.log[-4000:]
    assert rejected(regions, "fedavg") == [{}] * 4

    settings = json.loads((folder / "app/config/config_fed_server.json").read_text())["workflows"][0]["args"]
    described = {name: regions.sites[name].kit / "local" / "site.yaml" for name in SITES}
    flat = run_together(Job.from_json(settings), described, tmp_path / "flat", resume=False)
    for site in SITES:
        one, other = map(load_file, (personal_model(regions, "fedavg", site), flat.folder / site / "model.safetensors"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one), site


def test_a_killed_node_ends_its_regions_part_of_the_job_and_a_resume_brings_it_back(regions):
    folder = regions.job("fedavg", rounds=4, regions=REGIONS, min_sites=2)
    submitted = regions.submit(folder)
    wait_for_round(regions, "fedavg", 1, seconds=240)
    node = regions.nodes["north"]
    node.kill()
    node.start()
    assert regions.wait(submitted, seconds=400) == "FINISHED:COMPLETED", regions.server.log[-4000:]
    lost = rejected(regions, "fedavg")
    assert lost[0] == {} and set(lost[-1]) == set(REGIONS["north"])
    assert all(reason.startswith("the node of its region north: it was restarted") for reason in lost[-1].values())
    until(lambda: not regions.nodes["north"].job_pids(submitted), 60, "the node's process did not end")
    resumed = regions.job("fedavg", rounds=5, regions=REGIONS, min_sites=2, resume="latest")
    assert regions.wait(regions.submit(resumed), seconds=400) == "FINISHED:COMPLETED", regions.server.log[-4000:]
    assert rejected(regions, "fedavg") == [*lost, {}]


def test_a_nodes_round_does_not_wait_for_a_site_that_was_restarted(regions):
    """Each region needs both of its sites for three of four updates, so that its node would wait for an hour."""
    submitted = regions.submit(regions.job("fedavg", rounds=4, regions=REGIONS, min_sites=3))
    wait_for_round(regions, "fedavg", 1, seconds=240)
    site = regions.sites["hospital-d"]
    site.kill_parent()
    site.start()
    assert regions.wait(submitted, seconds=400) == "FINISHED:COMPLETED", regions.server.log[-4000:]
    first, *_, last = rejected(regions, "fedavg")
    assert first == {} and set(last) == {"hospital-d"} and last["hospital-d"].startswith("it was restarted")
