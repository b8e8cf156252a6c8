"""Who has no certificate of the federation's authority, or one that has ended, is not let in."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from shared_components.deployment.federation_file import parse_federation
from shared_components.flare.provision import provision

from .prepared import describe, sign_again

pytestmark = pytest.mark.slow


def test_an_expired_and_a_foreign_certificate_stay_outside_while_the_others_connect(deploy, scenes, tmp_path):
    """FLARE 2.9 writes no word of it to either side's log; `surgfl secure-kit` says why."""
    now, day = datetime.now(UTC), timedelta(days=1)
    foreign = tmp_path / "foreign"
    provision(parse_federation(describe({"hospital-b": scenes[0]})), foreign)
    deployment = deploy()
    sign_again(deployment.kits, "hospital-a", begins=now - 2 * day, ends=now - day)
    sign_again(deployment.kits, "hospital-b", begins=now - day, ends=now + day, by=foreign)
    sign_again(deployment.kits, "hospital-c", begins=now - day, ends=now + day)  # as good as its first
    for party in deployment.parties:
        party.start()
    deployment.wait_for_sites("hospital-c")
    time.sleep(15)
    assert deployment.connected() == ["hospital-c"]
    registered = [name for name, site in deployment.sites.items() if "Successfully registered" in site.log]
    assert registered == ["hospital-c"] and all(site.pid for site in deployment.sites.values())
