"""What kits refuse: code that a job brings, and classes that are not on their list; and what they run all the same."""

import pytest

from evidence.production.hostile_jobs import UNLISTED, WORKFLOW, deployed, naming, with_code
from shared_components.flare.deployment.kits import find_kit, secure
from tests.flare.simulator import CLIENT, SERVER, edit

pytestmark = pytest.mark.slow


@pytest.fixture
def marker(tmp_path):
    """Return a folder where code that a job brings leaves a file as soon as it is imported."""
    (tmp_path / "marker").mkdir()
    return tmp_path / "marker"


def test_a_strict_site_runs_our_jobs_and_refuses_code_and_classes_that_are_not_listed(deploy, marker):
    """The server would take the code: the sites decide for themselves."""
    deployment = deploy("hospital-a", "hospital-b")
    secure(find_kit(deployment.server.kit), allow_custom_code=True)
    deployment.start()
    brings = deployment.submit(with_code(deployment, marker))
    assert deployment.wait(brings) == "FINISHED:FAILED_TO_RUN"
    said = "\n".join(deployed(deployment, brings))
    assert all(f"{name}: NVFLARE_ERROR: BYOC not permitted" in said for name in deployment.sites)
    other = deployment.submit(naming(deployment.job("fedavg", name="other"), CLIENT, UNLISTED))
    assert deployment.wait(other) != "FINISHED:COMPLETED"
    for site in deployment.sites.values():
        assert f"Component '{UNLISTED}' at config path" in site.log and "is not in allow_list" in site.log
    ours = deployment.submit(deployment.job("fedavg", rounds=1))
    assert deployment.wait(ours) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    assert list(marker.iterdir()) == []


def test_a_strict_server_refuses_code_and_workflows_that_are_not_listed(deploy, marker):
    deployment = deploy("hospital-a")
    secure(find_kit(deployment.sites["hospital-a"].kit), allow_custom_code=True)
    deployment.start()
    brings = deployment.submit(with_code(deployment, marker))
    assert deployment.wait(brings) == "FINISHED:FAILED_TO_RUN"
    assert "server: BYOC not permitted" in "\n".join(deployed(deployment, brings))
    other = deployment.submit(naming(deployment.job("fedavg", name="other"), SERVER, WORKFLOW))
    assert deployment.wait(other) != "FINISHED:COMPLETED"
    log = deployment.server.log
    assert f"Component '{WORKFLOW}' at config path" in log and "is not in allow_list" in log
    assert list(marker.iterdir()) == []


def test_kits_that_allow_code_run_it_and_their_own_filter_still_guards_what_leaves(deploy, marker):
    deployment = deploy("hospital-a")
    for party in deployment.parties:
        secure(find_kit(party.kit), allow_custom_code=True)
    deployment.start()
    job = with_code(deployment, marker)
    edit(job / CLIENT, lambda config: config.update(task_result_filters=[]))  # the job guards nothing
    assert deployment.wait(deployment.submit(job)) != "FINISHED:COMPLETED"
    assert [path.name for path in marker.iterdir()] == ["hospital-a"]
    assert "nothing was sent" in deployment.sites["hospital-a"].log
