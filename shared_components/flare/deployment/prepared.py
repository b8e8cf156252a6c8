"""Secure kits of `nvflare deploy prepare`, which start jobs in containers, pods or Slurm jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

RUNTIME = "study_runtime.yaml"  # in `local`: image, data and environment of a job's process
POD = "job_pod.yaml"  # in `local`: template of a job's pod
STUDY = "default"  # the study of every job
SAFE = "PYTHONSAFEPATH"  # import nothing from the working folder
NETWORK = "helm_chart/templates/network.yaml"
FLARES = "nvflare.app_opt.job_launcher."
OURS = "shared_components.flare.launchers."
PROCESS = "nvflare.app_common.job_launcher."
LAUNCHERS = {
    f"{FLARES}docker_launcher.ClientDockerJobLauncher": f"{OURS}DockerLauncher",
    f"{FLARES}k8s_launcher.ClientK8sJobLauncher": f"{OURS}KubernetesLauncher",
    f"{FLARES}slurm.ClientSlurmJobLauncher": f"{OURS}SlurmLauncher",
}
"""FLARE's launchers of a site's jobs, each with ours."""
CONTAINERS = {f"{OURS}DockerLauncher": "docker", f"{OURS}KubernetesLauncher": "kubernetes"}
RESOURCES = {"num_of_gpus": 1, "memory": "8Gi"}
TEMPLATES = Path(__file__).with_name("cluster")
START_DOCKER, MOUNTED = "start_docker.sh", '    -e NVFL_DOCKER_WORKSPACE="$HOST_WORKSPACE"'


class PreparedError(ValueError):
    """A prepared kit that cannot be secured; the message has the reason and the remedy."""


def find_launcher(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the component in `resources.json` that starts jobs elsewhere; None if jobs are processes of this machine.

    PreparedError: the launcher is unknown, or a server's.
    """
    entries = [entry for entry in values.get("components", []) if str(entry.get("id")).endswith("_launcher")]
    others = [entry for entry in entries if not str(entry.get("path")).startswith(PROCESS)]
    for entry in others:
        path = str(entry.get("path"))
        if path.startswith(FLARES) and "Server" in path:
            raise PreparedError(
                f"{path}: the server's filter accepts no processes on other machines; start the server without "
                "nvflare deploy prepare, as a service or container"
            )
        if path not in LAUNCHERS and path not in LAUNCHERS.values():
            raise PreparedError(f"{path}: is no launcher that SurgFL can secure; remove it, or prepare the kit again")
    if len(others) > 1:
        raise PreparedError(f"{len(others)} launchers: FLARE starts no job with more than one; prepare the kit again")
    return others[0] if others else None


def secure_launcher(values: dict[str, Any], gpus: int | None = None) -> dict[str, Any] | None:
    """Replace FLARE's launcher with ours in the values of `resources.json`, and return it.

    Args:
        values: Content of `resources.json`.
        gpus: GPUs of each job's process; None keeps the number, 1 at first.
    """
    if (launcher := find_launcher(values)) is None:
        if gpus is not None:
            raise PreparedError("--gpus is for kits of nvflare deploy prepare; other jobs use CUDA_VISIBLE_DEVICES")
        return None
    launcher["path"] = LAUNCHERS.get(launcher["path"], launcher["path"])
    resources = launcher.setdefault("args", {}).setdefault("resources", dict(RESOURCES))
    if gpus is not None:
        resources["num_of_gpus"] = gpus
    return launcher


def local_files(kit: Path, launcher: dict[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield the templates that a prepared kit lacks: path, text, summary; the hospital fills them in."""
    kind = CONTAINERS.get(LAUNCHERS.get(launcher["path"], launcher["path"]))
    if kind is None:
        return
    path = kit / "local" / RUNTIME
    if not path.exists() or not _read_yaml(path).get("studies"):
        yield path, _template(f"{kind}.yaml"), "image and data of a job's container, a template; fill it in"
    if kind == "kubernetes":
        if not (path := kit / "local" / POD).exists():
            yield path, _template(POD), "a job's pod: not root, no privileges, no token of the cluster"
        if not (path := kit / NETWORK).exists():
            yield path, _network(kit), "the site connects to its server and its cluster, and a job only to its site"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PreparedError(f"{path}: cannot be read ({error!s:.200}); correct it, or prepare the kit again") from error
    if not isinstance(values, dict):
        raise PreparedError(f"{path}: contains no mapping; correct it, or prepare the kit again")
    return values


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _network(kit: Path) -> str:
    """Return the network policies of a site and its jobs, with names and ports from the kit."""
    values = _read_yaml(kit / "helm_chart" / "values.yaml")
    client = _read_yaml(kit / "startup" / "fed_client.json")  # JSON is YAML
    server = client["servers"][0]["service"]["target"].rpartition(":")[2]
    text = _template("network.yaml")
    for word, value in (("SITE", values["serviceName"]), ("PARENT_PORT", values["port"]), ("SERVER_PORT", server)):
        text = text.replace(f"@{word}@", str(value))
    return text


def safe_docker_start(text: str) -> str:
    """Return FLARE's `start_docker.sh` with Python's safe path in the container."""
    if f"-e {SAFE}=1" in text:
        return text
    if MOUNTED not in text:
        raise PreparedError(f"{START_DOCKER}: is not FLARE's script; prepare the kit again")
    return text.replace(MOUNTED, f"    -e {SAFE}=1 \\\n{MOUNTED}")
