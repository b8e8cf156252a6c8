"""A run without faults, from one small YAML file to models; other trials are compared with it."""

from evidence.production.results import personal_model, rejected
from evidence.production.trials import Deploy, trial


@trial("PFedSIS at three sites, strict kits", quick=True)
def plain_run(deploy: Deploy) -> str:
    """All sites take part in all rounds, each gets a model, the server has the report, and all parties shut down."""
    deployment = deploy()
    deployment.start()
    job = deployment.submit(deployment.job("pfedsis", rounds=2))
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, "pfedsis") == [{}, {}]
    models = [personal_model(deployment, "pfedsis", site) for site in deployment.sites]
    assert all(path.is_file() for path in models)
    assert (deployment.server.runs("pfedsis") / "report" / "index.html").is_file()
    deployment.fetch(job)
    deployment.shutdown()
    seconds = ", ".join(f"{name} {value:g} s" for name, value in deployment.phases.items())
    return f"{len(models)} models after 2 rounds; {seconds}"
