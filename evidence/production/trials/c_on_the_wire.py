"""Traffic of sites is recorded before TLS and searched for values that must stay at the site."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import torch
from safetensors.torch import load_file
from torch import Tensor

from evidence.production import noted
from evidence.production.deployment import Deployment, Party
from evidence.production.prepared import change_data, data_of
from evidence.production.recorder import WIRE
from evidence.production.search import Patterns, file_windows, patterns, search, windows
from evidence.production.trials import Deploy, trial
from shared_components.core.partition import below
from shared_components.federation.setup.local_round import OPTIMIZER
from shared_components.federation.site.state import OWN
from shared_components.flare.deployment.kits import BOUNDARY
from tests.federation.conftest import TINY
from tests.flare.simulator import CLIENT, edit

SECRET = "Mustermann-1958-04-01"  # marker in the names of a site's videos and folders, and in its text
ROUNDS = 2
PICTURES = (".png", ".jpg")


@trial("search FedPer and PFedSIS (no APE) traffic for LOCAL values")
def nothing_local(deploy: Deploy) -> str:
    """Traffic contains all GLOBAL values, and no LOCAL values of any round, LOCAL changes or optimizer state."""
    deployment = recorded(deploy())
    noted.note(deployment.root)
    deployment.start()
    own = {"fedper": {}, "pfedsis": {"arguments": {"ape": False}}}  # without APE, the personal slices are LOCAL
    for seed, (name, changes) in enumerate(
        own.items()
    ):  # with equal seeds, one site's sent values equal another site's first LOCAL values
        training = {**TINY, "seed": seed}
        folder = deployment.job(name, rounds=ROUNDS, bundle="pfedsis", training=training, **changes)
        job = deployment.submit(folder)
        assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    deployment.kill()
    secret: Patterns = {}
    controls = seen = total = 0
    for party in deployment.sites.values():
        frames = frames_of(deployment, party)
        folders = {name: party.runs(name) / party.name for name in own}
        local = {f"{party.name} {name} ": patterns(kept(folder)) for name, folder in folders.items()}
        control = {f"{party.name} {name} ": patterns(answered(folder)) for name, folder in folders.items()}
        assert all(local.values()) and all(control.values()), "there is something to search for"
        hidden, open_ = joined(local), joined(control)
        found = search(hidden | open_, frames)
        leaked = sorted(hidden.keys() & found.keys())
        assert not leaked, f"{len(leaked)} LOCAL values, such as {leaked[0]}"
        secret |= hidden
        controls, seen = controls + len(open_), seen + len(open_.keys() & found.keys())
        total += sum(path.stat().st_size for path in frames)
    assert seen == controls, f"the search sees {seen} of {controls} tensors that were sent"
    leaked = sorted(search(secret, stored(deployment.server)))
    assert not leaked, f"the server has {len(leaked)} LOCAL values, such as {leaked[0]}"
    return f"0 of {len(secret)} LOCAL tensors in {total / 1e6:.0f} MB, and {seen} of {controls} GLOBAL and MIXED ones"


@trial("two sites send LOCAL pieces, one with its filter, one without", quick=True)
def leaking(deploy: Deploy) -> str:
    """The search finds real leaks, and a site's filter stops a modified site program."""
    deployment = recorded(deploy())
    noted.note(deployment.root)
    noted.leak(deployment.root, "hospital-a", "hospital-b")
    guarded, open_, honest = deployment.sites.values()
    (open_.kit / "local" / "privacy.json").unlink()
    edit(open_.kit / "startup" / "fed_client.json", let_start_without_filter)
    deployment.start()
    job = deployment.job("fedper", rounds=1, min_sites=1)
    edit(job / CLIENT, lambda config: config.update(task_result_filters=[]))  # only the sites' own filters are left
    assert deployment.wait(deployment.submit(job)) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    deployment.kill()
    counts = {}
    for party in (guarded, open_, honest):
        (run,) = (party.kit / "surgfl" / "fedper").glob("[0-9]*")
        secret = patterns(below(OWN, load_file(run / party.name / "round-00000.safetensors")))
        assert secret, party.name
        counts[party.name] = (len(search(secret, frames_of(deployment, party))), len(secret))
    assert counts["hospital-a"][0] == counts["hospital-c"][0] == 0, counts
    assert counts["hospital-b"][0] == counts["hospital-b"][1], counts
    return ", ".join(
        f"{found} of {of} {words}"
        for (found, of), words in zip(counts.values(), ("with", "without", "of the third site"), strict=True)
    )


def let_start_without_filter(file: dict[str, Any]) -> None:
    """Remove the check that ends a site's processes if its own files do not restrict them."""
    file["components"] = [one for one in file["components"] if one["path"] != BOUNDARY]


@trial("search traffic and server for video names, paths, texts, frames")
def no_names(deploy: Deploy) -> str:
    """A refused job with a damaged frame leaks nothing; only the site's own log contains the frame's path."""
    deployment = recorded(deploy())
    for party in deployment.sites.values():
        name_after_patients(party, deployment.folder / f"{party.name}-{SECRET}")
    deployment.start()
    job = deployment.submit(deployment.job("pfedsis", rounds=1))
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    whole = {
        f"{path}": pixels
        for party in deployment.sites.values()
        for path in pictures(deployment.folder / f"{party.name}-{SECRET}")
        if (pixels := [*file_windows(path), *decoded(path)])
    }
    refusing = deployment.sites["hospital-b"]
    broken = next(pictures(deployment.folder / f"{refusing.name}-{SECRET}"))
    broken.write_bytes(broken.read_bytes()[:100])
    again = deployment.submit(deployment.job("fedavg", rounds=1))
    assert deployment.wait(again) != "FINISHED:COMPLETED"
    deployment.kill()
    assert SECRET in text_of(refusing), "the site itself says which frame it is"
    sent = [path for party in deployment.sites.values() for path in frames_of(deployment, party)]
    everywhere = [*sent, *frames_of(deployment, deployment.server), *stored(deployment.server)]
    names: Patterns = {SECRET: [SECRET.encode(), SECRET.encode("utf-16-le")]}
    found = search(whole | names, everywhere)
    assert not found, f"{len(found)} found, such as {next(iter(found.items()))}"
    control = {"who": [b"hospital-a"]}
    assert search(control, sent), "the search sees a site's name"
    size = sum(path.stat().st_size for path in everywhere)
    return f"0 of {len(whole)} pictures and 0 names in {len(everywhere)} files of {size / 1e6:.0f} MB"


def recorded(deployment: Deployment) -> Deployment:
    """Record the traffic of a deployment whose sites publish no model."""
    noted.record_frames(deployment.root)
    for party in deployment.sites.values():
        change_data(party.kit, publish=["style"])
    return deployment


def joined(groups: Mapping[str, Patterns]) -> Patterns:
    """Return search patterns with longer group names."""
    return {f"{group}{name}": ones for group, found in groups.items() for name, ones in found.items()}


def frames_of(deployment: Deployment, party: Party) -> list[Path]:
    """Return the traffic records of a party's parent process and of its jobs' processes."""
    found = sorted((deployment.folder / WIRE / party.name).glob("*.frames"))
    assert len([path for path in found if path.stat().st_size]) >= 2, f"{party.name}: {len(found)} records"
    return found


def stored(party: Party) -> list[Path]:
    """Return all files of a party: logs, runs, and FLARE's jobs."""
    return [path for path in sorted(party.kit.rglob("*")) if path.is_file() and not path.is_symlink()]


def text_of(party: Party) -> str:
    """Return a site's logs."""
    return "\n".join(path.read_text(errors="replace") for path in stored(party) if path.suffix == ".txt")


def kept(folder: Path) -> dict[str, Tensor]:
    """Return a site's private values: LOCAL pieces at first and after each round, their changes, optimizer state."""
    before = load_file(folder / "noted-first.safetensors")
    found = {f"first {name}": value for name, value in before.items()}
    for number in range(ROUNDS):
        state = load_file(folder / f"round-{number:05d}.safetensors")
        own = below(OWN, state)
        assert own.keys() == before.keys() and own
        found |= {f"round {number} {name}": value for name, value in own.items()}
        changes = {name: own[name] - before[name] for name in own if own[name].is_floating_point()}
        found |= {f"change {number} {name}": value for name, value in changes.items()}
        found |= {f"round {number} {name}": value for name, value in state.items() if name.startswith(OPTIMIZER)}
        before = own
    return found


def answered(folder: Path) -> dict[str, Tensor]:
    """Return the pieces of a site's answers, which must be in the traffic."""
    each = [load_file(folder / f"noted-{number:05d}.safetensors") for number in range(ROUNDS)]
    return {f"answer {n} {name}": value for n, pieces in enumerate(each) for name, value in pieces.items()}


def name_after_patients(party: Party, folder: Path) -> None:
    """Copy a site's data into folders and videos that are named after a patient."""
    described = data_of(party.kit)
    shutil.copytree(described["root"], folder)
    for videos in described["split"].values():
        for place, name in enumerate(videos):
            videos[place] = f"{name}-{SECRET}"
            os.rename(folder / name, folder / videos[place])
    change_data(party.kit, split=described["split"], root=str(folder), text=f"filmed of {SECRET}")


def pictures(folder: Path) -> Iterator[Path]:
    """Yield the images of a folder; labels have too few different values to search for."""
    yield from (path for path in sorted(folder.rglob("*")) if path.suffix in PICTURES)


def decoded(path: Path) -> Iterable[bytes]:
    """Return windows of a picture's pixels in BGR and RGB order."""
    pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    for one in (pixels, pixels[..., ::-1].copy()):
        yield from windows(torch.from_numpy(one))
