"""The processes of a real federation write their metrics, before and after a job."""

import pytest

from evidence.production.deployment import until
from shared_components.flare.deployment.kits import find_kit, secure

pytestmark = pytest.mark.slow


def test_server_and_site_write_metrics_before_and_after_a_job(deploy_quick, tmp_path):
    deployment = deploy_quick("hospital-a", "hospital-b")
    site, folder = deployment.sites["hospital-a"], tmp_path / "metrics"
    for party in (deployment.server, site):
        secure(find_kit(party.kit), metrics=folder)

    def has(name, line):
        file = folder / f"surgfl-{name}.prom"
        return file.is_file() and line in file.read_text().splitlines()

    deployment.start()
    until(lambda: has("hospital-a", 'surgfl_running_jobs{party="hospital-a",role="site"} 0.0'), 60, "no metrics")
    job = deployment.submit(deployment.job("fedavg", rounds=2))
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    server = '{party="server",role="server"'
    until(lambda: has("server", f"surgfl_rounds_done{server}}} 2.0"), 60, "the server counts no rounds")
    assert has("server", f'surgfl_site_connected{server},site="hospital-b"}} 1.0')
    assert has("server", f'surgfl_rejected_updates{server},site="hospital-a"}} 0.0')
    until(lambda: has("hospital-a", 'surgfl_rounds_done{party="hospital-a",role="site"} 2.0'), 60, "nor does the site")
    text = (folder / "surgfl-hospital-a.prom").read_text()
    assert "surgfl_training_seconds" in text and "hospital-b" not in text and "/" not in text.replace("\n#", "")
    assert "metrics are missing" not in deployment.server.log + site.log
