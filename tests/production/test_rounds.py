"""From one small YAML to two rounds of PFedSIS among real processes, at sites that allow nothing else."""

import pytest

pytestmark = pytest.mark.slow


def test_three_sites_run_two_rounds_with_the_allow_list_enforced(deploy):
    deployment = deploy()
    deployment.start()
    job = deployment.submit(deployment.job("pfedsis"))
    status = deployment.wait(job)
    print(deployment.phases)
    assert status == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    for name, site in deployment.sites.items():
        assert (site.runs("pfedsis") / name / "model.safetensors").is_file()
    assert (deployment.server.runs("pfedsis") / "report" / "index.html").is_file()
    deployment.fetch(job)
    deployment.shutdown()
    print(deployment.phases)
