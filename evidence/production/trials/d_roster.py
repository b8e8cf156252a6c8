"""A modified server joins secure sums as a site, or changes the sites' list of members."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from evidence.production import ghost_site
from evidence.production.deployment import Deployment
from evidence.production.results import rejected, run_to_end, wait_for_round
from evidence.production.trials import Deploy, trial

SECURE = {"threshold": 2}
TRAINED = "trained.safetensors"
UNCHECKED = """

import os

if os.environ.get("SURGFL_TEST_DEPLOYMENT", "").rpartition("/")[2] == {name!r}:
    from safetensors.torch import save_file

    from shared_components.federation.secure_sums import identity

    identity._other_owner = lambda *_: ""
    real = Masked.update

    def keep_and_mask(self, request, header, pieces, extras):
        save_file(pieces, self._path.with_name({trained!r}))
        return real(self, request, header, pieces, extras)

    Masked.update = keep_and_mask
"""


@trial("server: join secure aggregation as a site; change its list of sites")
def ghost(deploy: Deploy) -> str:
    """Sites refuse with a reason; a site without the certificate check reveals every weight."""
    deployment = deploy()
    a, b, c = deployment.sites
    haunt(deployment.root)
    take_any_certificate(deployment.root, c)
    deployment.start()
    logs = refused(deployment, ghost_site.CERTIFICATE, rounds=1)
    server = deployment.server.name
    for site in (a, b):
        words = f"the key of {server} is signed by the server, and by no site; nothing was sent"
        assert words in logs[site], logs[site][-2000:]
    read = {site: found(deployment, site) for site in deployment.sites}
    assert (read[a], read[b]) == ((0, 0), (0, 0)), read
    assert read[c][0] == read[c][1] > 0, (read, logs[c][-3000:])
    logs = refused(deployment, ghost_site.NAME, rounds=1)
    for site in deployment.sites:
        other = a if site != a else b
        assert f"the key of {other} is signed by ['{server}']; nothing was sent" in logs[site], logs[site]
    logs = refused(deployment, ghost_site.ROSTER, rounds=2)
    wait_for_round(deployment, ghost_site.ROSTER, 1)
    for site, words in zip((a, b, c), (f"no {c}", f"a new site {ghost_site.NEW}", f"another key of {a}"), strict=True):
        said = f"the server names {words}, unlike in the run's first round; nothing was sent, start a new run"
        assert said in logs[site], logs[site]
    assert rejected(deployment, ghost_site.ROSTER) == [{}], "the first round was a good one"
    run_to_end(deployment, "fedavg", name="after", rounds=2, secure_sums=SECURE)
    deployment.shutdown()
    return (
        f"0 of {2 * read[c][1]} weights of two sites were read; {read[c][0]} of {read[c][1]} of one that does not ask "
        "whose certificate it is; 6 of 6 changed lists refused; 2 of 2 secure rounds after"
    )


def haunt(installed: Path) -> None:
    """Install the modified program at the server; sites do not load it."""
    folder = installed / "shared_components" / "federation"
    shutil.copy(ghost_site.__file__, folder / "ghost_site.py")
    path = folder / "server" / "runner.py"
    words = "\n\nfrom shared_components.federation import ghost_site\n\nghost_site.change(ServerRunner)\n"
    path.write_text(path.read_text("utf-8") + words)


def take_any_certificate(installed: Path, name: str) -> None:
    """Let a site trust every certificate of the project, and save its trained weights."""
    path = installed / "shared_components" / "federation" / "site" / "secure_sums.py"
    path.write_text(path.read_text("utf-8") + UNCHECKED.format(name=name, trained=TRAINED))


def refused(deployment: Deployment, name: str, *, rounds: int) -> dict[str, str]:
    """Run a job that must end without a secure sum in its last round; return the sites' logs."""
    job = deployment.submit(deployment.job("fedavg", name=name, rounds=rounds, secure_sums=SECURE))
    ended = deployment.wait(job)
    assert ended.startswith("FINISHED:") and ended != "FINISHED:COMPLETED", ended
    return {site: party.job_log(job) + party.log for site, party in deployment.sites.items()}


def found(deployment: Deployment, site: str) -> tuple[int, int]:
    """Return the number of a site's weights that the server has read, and of all its weights; 0, 0 without a file."""
    path = deployment.server.runs(ghost_site.CERTIFICATE) / ghost_site.FOUND.format(site)
    if not path.exists():
        return 0, 0
    read = load_file(path)
    kept = deployment.sites[site].kit / "surgfl" / ghost_site.CERTIFICATE / path.parent.name / site / TRAINED
    own = load_file(kept)
    same = [(read[name].double() - own[name].double()).abs() <= 1e-8 for name in own]
    return int(sum(one.sum() for one in same)), sum(torch.numel(one) for one in same)
