"""A disk is full or small, or a clock is an hour off. Needs root, since disks are file systems in memory."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from evidence.production.deployment import Deployment, Party, until
from evidence.production.results import (
    LONGER,
    SHORTEST,
    equal_tensors,
    failure,
    personal_model,
    rejected,
    run_to_end,
    wait_for_round,
)
from evidence.production.trials import Deploy, trial

HOUR = 3600
RUNS = "surgfl"  # folder in a kit
NO_SPACE = "could not be written (No space left on device); check the disk's space"
SETTINGS = {"rounds": 4, "training": LONGER}


@contextmanager
def small_disk(party: Party, folder: Path, *, megabytes: int = 64) -> Iterator[Path]:
    """Mount a separate disk at a party's kit or at a folder in it, yield its path, and unmount it at the end."""
    if os.geteuid() != 0:
        raise PermissionError("needs root, to mount a small disk")
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
        shutil.copytree(aside, folder, dirs_exist_ok=True)
    try:
        yield folder
    finally:
        party.kill()
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk with one file; return the file."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    assert shutil.disk_usage(folder).free == 0
    return filler


def whole_files(folder: Path) -> int:
    """Return the number of complete tensor files; assert that there are no partly written files."""
    files = list(folder.rglob("*.safetensors"))
    for path in files:
        load_file(path)
    beside = [path for path in folder.rglob(".*") if path.is_file()]
    assert files and not beside, beside
    return len(files)


def alike(deployment: Deployment, name: str) -> str:
    """Compare the sites' models of a FedAvg job, which are equal; return the number of equal tensors."""
    first, *others = (load_file(personal_model(deployment, name, site)) for site in deployment.sites)
    assert first and all(first.keys() == other.keys() for other in others)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    return f"{len(first)} tensors bit-equal at all {len(deployment.sites)} sites"


@trial("a site's disk full for two rounds, min_sites 2 of 3")
def full_disk_at_a_site(deploy: Deploy) -> str:
    """Only this site is absent, its log has the reason, its files stay complete, and it comes back."""
    deployment = deploy()
    site = deployment.sites["hospital-b"]
    with small_disk(site, site.kit / RUNS) as disk:
        deployment.start()
        job = deployment.submit(deployment.job("fedavg", rounds=6, min_sites=2, training=LONGER))
        wait_for_round(deployment, "fedavg", 1)
        filler = fill(disk)
        wait_for_round(deployment, "fedavg", 3)
        kept = whole_files(disk)
        filler.unlink()
        assert deployment.wait(job, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        found = rejected(deployment, "fedavg")
        assert len(found) == 6 and all(set(one) <= {site.name} for one in found), found
        assert not found[0] and found[2] and not found[5], found
        for log in (site.log, site.job_log(job)):
            said = [line for line in log.splitlines() if f"site {site.name}: {disk}" in line]
            assert said and all(NO_SPACE in line for line in said), log[-2000:]
        missed = sum(map(bool, found))
        return (
            f"{missed} of 6 rounds without it, {6 - missed} with all; {kept} of its files whole on the full disk; "
            f"{alike(deployment, 'fedavg')}"
        )


@trial("the server's run disk full, then freed")
def full_disk_at_the_server(deploy: Deploy) -> str:
    """The job ends with one error message that names the file, and resumes with equal bits."""
    deployment = deploy()
    with small_disk(deployment.server, deployment.server.kit / RUNS) as disk:
        deployment.start()
        run_to_end(deployment, "fedavg", name="whole", **SETTINGS)
        job = deployment.submit(deployment.job("fedavg", name="broken", **SETTINGS))
        wait_for_round(deployment, "broken", 1)
        filler = fill(disk)
        assert deployment.wait(job, seconds=600) != "FINISHED:COMPLETED"
        said = failure(deployment, "broken")
        assert NO_SPACE in said and "broken" in said, said
        kept = whole_files(deployment.server.runs("broken"))
        filler.unlink()
        run_to_end(deployment, "fedavg", name="broken", resume="latest", **SETTINGS)
        return f"{kept} files whole; {equal_tensors(deployment, 'whole', 'broken')}"


@trial("a site's whole kit disk full, job needs all sites")
def full_disk_of_a_site(deploy: Deploy) -> str:
    """Rounds continue without the site, a job that needs it is refused by name, and with free space it comes back."""
    deployment = deploy()
    party = deployment.sites["hospital-b"]
    with small_disk(party, party.kit, megabytes=96) as disk:
        deployment.start()
        settings = {"name": "two", "min_sites": 2, "training": LONGER}
        job = deployment.submit(deployment.job("fedavg", rounds=6, **settings))
        wait_for_round(deployment, "two", 1)
        filler = fill(disk)
        assert deployment.wait(job, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        missed = rejected(deployment, "two")
        assert not missed[0] and set(missed[-1]) == {party.name}, missed
        assert {name for one in missed for name in one} == {party.name}, missed
        filler.unlink()
        filler = fill(disk)
        needs_all = deployment.submit(deployment.job("fedavg", name="all", **SETTINGS))
        assert deployment.wait(needs_all, seconds=600) != "FINISHED:COMPLETED"
        said = failure(deployment, "all")
        assert said.startswith(f"{party.name}: it did not accept the job: ") and "no round was started" in said, said
        assert not any(name in said for name in deployment.sites if name != party.name), said
        filler.unlink()
        again = deployment.submit(deployment.job("fedavg", rounds=8, resume="latest", **settings))
        assert deployment.wait(again, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        assert rejected(deployment, "two") == [*missed, {}, {}]
        count = sum(map(bool, missed))
        return f"{count} of 6 rounds without it, 1 of 1 job refused by its name; resumed, 2 of 2 rounds with all"


@trial("the server's whole kit disk full, then freed")
def full_disk_of_the_server(deploy: Deploy) -> str:
    """The job ends, the server survives, and with free space the job is resumed without a restart."""
    deployment = deploy()
    server = deployment.server
    with small_disk(server, server.kit, megabytes=96) as disk:
        deployment.start()
        run_to_end(deployment, "fedavg", name="whole", **SETTINGS)
        process = server.pid
        job = deployment.submit(deployment.job("fedavg", name="broken", **SETTINGS))
        wait_for_round(deployment, "broken", 1)
        filler = fill(disk)
        until(lambda: not server.job_pids(job), 120, "the job has ended")
        kept = whole_files(server.runs("broken"))
        filler.unlink()
        deployment.wait_for_sites(*deployment.sites, seconds=120)
        run_to_end(deployment, "fedavg", name="broken", resume="latest", **SETTINGS)
        assert server.pid == process, "the server was started again"
        return f"{kept} of its files whole, the same process; {equal_tensors(deployment, 'whole', 'broken')}"


NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
CONTAINER = """mount -t tmpfs -o size=64m tmpfs /dev/shm && mount -t tmpfs tmpfs /var/tmp && mount --bind "$0" "$0" &&
for part in startup local; do mount --bind "$0/$part" "$0/$part" && mount -o remount,bind,ro "$0/$part" || exit; done &&
mount -o remount,bind,ro / && exec "$@"
"""


def in_container(party: Party) -> None:
    """Give a party a container's file systems from its next start: two folders of its kit are read-only."""
    party.prefix = (*NAMESPACE, CONTAINER, str(party.kit))


@trial("64 MB of shared memory; only the kit is writable, without startup/ and local/")
def little_room(deploy: Deploy) -> str:
    """A network of 27 MB with LOCAL pieces completes its rounds and leaves nothing in shared memory."""
    deployment = deploy()
    for party in deployment.parties:
        in_container(party)
    deployment.start()
    job = deployment.submit(deployment.job("fedper", bundle="pfedsis", training=SHORTEST))
    assert deployment.wait(job, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, "fedper") == [{}, {}]
    seen = [Path(f"/proc/{party.pid}/root") for party in deployment.parties]
    disks = [shutil.disk_usage(root / "dev/shm") for root in seen]
    assert all(disk.total == 64 << 20 for disk in disks), disks
    assert all(os.statvfs(root / "etc").f_flag & os.ST_RDONLY for root in seen)
    kits = [root / party.kit.relative_to("/") for root, party in zip(seen, deployment.parties, strict=True)]
    assert all(os.statvfs(kit / part).f_flag & os.ST_RDONLY for kit in kits for part in ("startup", "local"))
    assert not any(os.statvfs(kit).f_flag & os.ST_RDONLY for kit in kits)
    sizes = [personal_model(deployment, "fedper", site).stat().st_size for site in deployment.sites]
    left, all_of_it = (sum(getattr(disk, what) for disk in disks) for what in ("used", "total"))
    return (
        f"{len(sizes)} models of {min(sizes) / 1e6:.0f} MB after 2 rounds; {left} bytes left behind in "
        f"{all_of_it >> 20} MB of shared memory"
    )


OFF = 'mount -t tmpfs tmpfs /dev/shm && exec env LD_PRELOAD="$0" FAKETIME_DONT_FAKE_MONOTONIC=1 "$@"'
"""libfaketime has files in shared memory, and leaves them behind when its process is killed."""


def off(party: Party, seconds: int) -> None:
    """Shift a party's clock from its next start; durations stay as they are."""
    import libfaketime

    library = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    assert library.is_file()
    party.prefix = (*NAMESPACE, OFF, str(library), f"FAKETIME={seconds:+d}s")


@trial("clocks an hour off at a site and the server")
def clocks(deploy: Deploy) -> str:
    """No decision depends on a clock: weights are equal, and `latest` is the newest run.

    All sites but one are an hour ahead, since a new certificate is not valid an hour ago.
    """
    deployment = deploy()
    deployment.start()
    run_to_end(deployment, "fedavg", name="whole", **SETTINGS)
    deployment.kill()
    for party in deployment.parties:
        off(party, 0 if party.name == "hospital-b" else HOUR)
    deployment.start()
    run_to_end(deployment, "fedavg", name="ahead", **SETTINGS)
    earlier = deployment.server.runs("ahead").name
    assert earlier > deployment.server.runs("whole").name, "the clocks are not off"
    equal = [equal_tensors(deployment, "whole", "ahead")]
    deployment.submit(deployment.job("fedavg", name="broken", **SETTINGS))
    wait_for_round(deployment, "broken", 1)
    deployment.server.kill()
    begun = deployment.server.runs("broken")
    off(deployment.server, 0)
    deployment.server.start()
    deployment.wait_for_sites(*deployment.sites, seconds=120)
    run_to_end(deployment, "fedavg", name="broken", resume="latest", **SETTINGS)
    assert deployment.server.runs("broken") == begun, "another run was resumed"
    equal.append(equal_tensors(deployment, "whole", "broken"))
    run_to_end(deployment, "fedavg", name="ahead", **SETTINGS)
    assert deployment.server.runs("ahead").name > earlier, "latest names the run before"
    equal.append(equal_tensors(deployment, "whole", "ahead"))
    assert len(set(equal)) == 1
    return f"{len(equal)} runs, each {equal[0]}; the newest run found in 2 of 2 cases"
