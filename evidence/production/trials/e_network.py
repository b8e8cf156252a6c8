"""The network is slow, loses frames, or is cut. Every party has its own network namespace. Needs root."""

import time

from evidence.production.deployment import Deployment
from evidence.production.network import Network
from evidence.production.prepared import free_ports
from evidence.production.results import LONGER, equal_tensors, failure, rejected, run_to_end, wait_for_round
from evidence.production.trials import Deploy, trial

SITES = ("hospital-a", "hospital-b", "hospital-c")
SLOW, LOSS, CUT = 1_000_000, 0.05, 20.0  # bits per second, share of lost frames, seconds of the cut


def begin(deploy: Deploy, network: Network) -> Deployment:
    """Start a federation on this network."""
    port, admin_port = free_ports(2)
    server = {"host": network.server, "organisation": "consortium", "port": port, "admin_port": admin_port}
    deployment = deploy(*SITES, change={"server": server}, prefixes=network.prefixes)
    deployment.start(seconds=120)
    return deployment


@trial("1 Mbit/s, 5 % of frames lost, cut off for 20 s")
def slow_and_cut_for_a_while(deploy: Deploy) -> str:
    """The run is slower, and its result bit-equal."""
    with Network(SITES) as network:
        deployment = begin(deploy, network)
        try:
            settings = {"rounds": 3, "training": LONGER}
            run_to_end(deployment, "fedavg", name="whole", seconds=240, **settings)
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


@trial("one site's network cut permanently")
def cut_for_good(deploy: Deploy) -> str:
    """With min_sites 2 of 3, the others go on. Otherwise the job ends with one error message and can be resumed."""
    with Network(SITES) as network:
        deployment = begin(deploy, network)
        try:
            settings = {"rounds": 3, "training": LONGER, "longest_wait_seconds": 60}
            run_to_end(deployment, "fedavg", name="whole", seconds=240, **settings)
            link = network.links["hospital-b"]
            all_needed = deployment.submit(deployment.job("fedavg", name="all", **settings))
            wait_for_round(deployment, "all", 1)
            link.cut = True
            assert deployment.wait(all_needed) != "FINISHED:COMPLETED"
            said = failure(deployment, "all")
            assert "hospital-b" in said and "hospital-a" not in said and "hospital-c" not in said, said
            link.cut = False
            deployment.wait_for_sites(*SITES, seconds=180)
            run_to_end(deployment, "fedavg", name="all", seconds=240, resume="latest", **settings)
            equal = equal_tensors(deployment, "whole", "all")
            job = deployment.submit(deployment.job("fedavg", name="enough", min_sites=2, **settings))
            wait_for_round(deployment, "enough", 1)
            link.cut = True
            assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
            found = rejected(deployment, "enough")
            assert len(found) == 3 and not found[0] and set(found[-1]) == {"hospital-b"}, found
            return f"{sum(not one for one in found)} of 3 rounds with it, 3 of 3 with the others; mended: {equal}"
        finally:
            deployment.kill()
