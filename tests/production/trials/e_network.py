"""The network is slow, loses frames, or is cut; every party is in a namespace of its own. Needs root."""

from __future__ import annotations

import time

from tests.production.deployment import Deployment
from tests.production.network import Network
from tests.production.prepared import free_ports
from tests.production.results import LONGER, equal_tensors, rejected, wait_for_round
from tests.production.trials import Deploy, trial

SITES = ("hospital-a", "hospital-b", "hospital-c")
SLOW, LOSS, CUT = 1_000_000, 0.05, 20.0  # bits in a second, a share of the frames, seconds


def begin(deploy: Deploy, network: Network) -> Deployment:
    """Start a federation whose parties meet on that network."""
    port, admin_port = free_ports(2)
    server = {"host": network.server, "organisation": "consortium", "port": port, "admin_port": admin_port}
    deployment = deploy(*SITES, change={"server": server}, prefixes=network.prefixes)
    deployment.start(seconds=120)
    return deployment


@trial("one site has 1 Mbit/s and 5 % of frames lost, and is cut off for 20 s in a round")
def slow_and_cut_for_a_while(deploy: Deploy) -> str:
    """Slower, and not a bit otherwise."""
    with Network(SITES) as network:
        deployment = begin(deploy, network)
        try:
            settings = {"rounds": 3, "training": LONGER}
            whole = deployment.submit(deployment.job("fedavg", name="whole", **settings))
            assert deployment.wait(whole) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
            link = network.links["hospital-b"]
            link.rate, link.loss = SLOW, LOSS
            job = deployment.submit(deployment.job("fedavg", name="slow", **settings))
            wait_for_round(deployment, "slow", 1)
            lost = link.dropped
            link.cut = True
            time.sleep(CUT)
            link.cut = False
            assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
            assert 0 < lost < link.dropped
            assert rejected(deployment, "slow") == [{}] * 3
            equal = equal_tensors(deployment, "whole", "slow")
            return f"{link.dropped} frames lost, {link.carried} carried; {equal}"
        finally:
            deployment.kill()
