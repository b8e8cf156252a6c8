"""Kits of `nvflare deploy prepare` keep the boundary: the command that FLARE's launcher would start runs here."""

import base64
import json
import os
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
import yaml
from nvflare.apis.fl_constant import FLContextKey, JobConstants, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.apis.workspace import Workspace
from nvflare.app_opt.job_launcher import workspace_cell_transfer
from nvflare.app_opt.job_launcher.slurm.config import CommandResult, SubmissionResult
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.tool.deploy.deploy_commands import prepare_deployment

from shared_components.cli import main
from shared_components.flare.deployment.kits import ALLOW_LIST, KitError, find_kit, open_problem, secure
from shared_components.flare.deployment.prepared import FLARES, RUNTIME
from shared_components.flare.launchers import DockerLauncher
from tests.flare.simulator import edit

MOUNT = "/var/tmp/nvflare/workspace"
JOB = "11111111-2222-3333-4444-555555555555"
CONFIGS = {
    "docker": {"runtime": "docker", "parent": {"docker_image": "surgfl:0.1.0"}},
    "k8s": {"runtime": "k8s", "parent": {"docker_image": "surgfl:0.1.0"}},
    "slurm": {
        "runtime": "slurm",
        "job_launcher": {"sandbox": "none", "python_path": sys.executable, "parent_host": "127.0.0.1"},
    },
}
CLIENT_CONFIG = ALLOW_LIST.with_name("client_config.json")
OPTIONS = ["secure_train=true", "uid=hospital-a", "org=hospital_a", "config_folder=config"]
GREEDY = {
    "launcher_spec": {"default": {kind: {"image": "evil", "num_of_gpus": 64} for kind in CONFIGS}},
    "resource_spec": {"hospital-a": {"num_of_gpus": 64}},
    "study": "other",
}
"""Requests of a job that FLARE's own launchers would grant, except the image."""


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


def prepare(folder, kind):
    """Run `nvflare deploy prepare` on a kit, and return the prepared kit's folder."""
    config = folder.parent / f"{kind}.yaml"
    config.write_text(yaml.safe_dump(CONFIGS[kind]))
    out = folder.parent / f"{folder.name}-{kind}"
    prepare_deployment(Namespace(kit=str(folder), output=str(out), config=str(config)))
    return out


def launch(folder, monkeypatch, meta=GREEDY):
    """Start a job by the kit's own launcher; return its command, environment, workspace and request to the cluster."""
    values = json.loads((folder / "local" / "resources.json").read_text())
    (entry,) = (one for one in values["components"] if one["id"].endswith("_launcher"))
    module, _, name = entry["path"].rpartition(".")
    launcher = getattr(import_module(module), name)(**entry["args"])
    kind = entry["id"].removesuffix("_launcher")
    root = str(folder) if kind == "slurm" else MOUNT
    arguments = {
        JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
        JobProcessArgs.JOB_ID: ("-n", JOB),
        JobProcessArgs.WORKSPACE: ("-m", root),
        JobProcessArgs.STARTUP_DIR: ("-w", f"{root}/startup"),
        JobProcessArgs.AUTH_TOKEN: ("-t", "token"),
        JobProcessArgs.TOKEN_SIGNATURE: ("-ts", "signature"),
        JobProcessArgs.SSID: ("-d", "ssid"),
        JobProcessArgs.CLIENT_NAME: ("--client_name", "hospital-a"),
        JobProcessArgs.PARENT_URL: ("-p", "stcp://127.0.0.1:8102"),
        JobProcessArgs.PARENT_CONN_SEC: ("--parent_conn_sec", "mtls"),
        JobProcessArgs.TARGET: ("-g", "localhost:1"),
        JobProcessArgs.SCHEME: ("-scheme", "grpc"),
        JobProcessArgs.STARTUP_CONFIG_FILE: ("-s", "fed_client.json"),
        JobProcessArgs.OPTIONS: ("--set", " ".join(OPTIONS)),
    }
    (folder / JOB).mkdir(exist_ok=True)
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, "hospital-a")
    context.set_prop(FLContextKey.JOB_PROCESS_ARGS, arguments)
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(str(folder), "hospital-a", "config"))
    context.set_prop(FLContextKey.ARGS, SimpleNamespace(workspace=str(folder), set=OPTIONS))
    meta = {**meta, JobConstants.JOB_ID: JOB}
    return {"docker": in_docker, "k8s": in_pod, "slurm": by_slurm}[kind](launcher, meta, context, folder, monkeypatch)


def in_docker(launcher, meta, context, folder, monkeypatch):
    client = MagicMock()
    client.containers.get.return_value.status = "running"
    monkeypatch.setattr(launcher, "_get_docker_client", lambda: client)
    launcher.workspace, launcher.WORKSPACE_MOUNT = str(folder), str(folder)
    launcher.launch_job(meta, context)
    (image,), request = client.containers.run.call_args
    mounts = {mount["Target"]: mount for mount in request["mounts"]}
    assert all(mounts[f"{folder}/{part}"]["ReadOnly"] for part in ("startup", "local"))
    assert mounts["/data/default/data"]["ReadOnly"] and not mounts["/data/default/runs"]["ReadOnly"]
    assert image == "surgfl:0.1.0" and request["device_requests"] == [{"Count": 1, "Capabilities": [["gpu"]]}]
    assert request["cap_drop"] == ["ALL"] and request["read_only"] and request["mem_limit"] == 8 * 2**30
    assert request["security_opt"] == ["no-new-privileges:true"]
    work = folder.parent / "work"
    work.mkdir()
    for part in ("startup", "local", JOB):
        shutil.copytree(folder / part, work / part)
    return request["command"], request["environment"], work


def in_pod(launcher, meta, context, folder, monkeypatch):
    for name in ("kubernetes", "kubernetes.client", "kubernetes.client.rest"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["kubernetes.client.rest"].ApiException = Exception
    api = launcher.core_v1 = MagicMock()
    api.read_namespaced_pod.return_value.status.phase = "Running"
    cell = Mock()
    cell.get_fqcn.return_value = "hospital-a"
    context.set_prop(ReservedKey.ENGINE, SimpleNamespace(cell=cell), private=True)
    launcher.launch_job(meta, context)
    pod = api.create_namespaced_pod.call_args.kwargs["body"]
    (container,), spec = pod["spec"]["containers"], pod["spec"]
    assert container["image"] == "surgfl:0.1.0" and container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["resources"]["limits"]["memory"] == "8Gi"
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    safety = container["securityContext"]
    assert safety == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts == {
        MOUNT: False, f"{MOUNT}/startup": True, "/data/default/data": True, "/data/default/runs": False, "/tmp": False
    }  # fmt: skip
    work = folder.parent / "work"
    (work / "startup").mkdir(parents=True)
    secrets = [call.kwargs["body"] for call in api.create_namespaced_secret.call_args_list]
    for name, data in secrets[0]["data"].items():
        (work / "startup" / name).write_bytes(base64.b64decode(data))
    workspace_cell_transfer._zip_workspace_to_file(str(folder), JOB, str(folder.parent / "bundle.zip"))
    with zipfile.ZipFile(folder.parent / "bundle.zip") as bundle:
        bundle.extractall(work)
    environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    environment.pop("NVFL_WORKSPACE_OWNER_FQCN")  # the bundle is unpacked here already
    credentials = {k: v for k, v in secrets[1]["stringData"].items() if "TRANSFER" not in k}
    return [*container["command"], *container["args"]], environment | credentials, work


def by_slurm(launcher, meta, context, folder, _):
    adapter = launcher.manager.adapter = Mock()
    adapter.accounting_probe.return_value = CommandResult(0, "", "")
    adapter.submit.return_value = SubmissionResult(CommandResult(0, "1", ""), "1")
    launcher.manager.config.executables["sbatch"] = "sbatch"
    launcher.manager.initialize()
    launcher.launch_job(meta, context)
    request = adapter.submit.call_args.args[0]
    assert {"--export=NIL", "--gres=gpu:1", "--mem=8192M", "--nodes=1"} <= set(request)
    return ["bash", request[-1]], {}, folder


def run(command, environment, work):
    """Run a launcher's command on this machine; only the mount's path and Python's are replaced."""
    words = [word.replace(MOUNT, str(work)) for word in command]
    if words[0].startswith("/usr/local/bin/python"):
        words[0] = sys.executable
    environment = {key: value.replace(MOUNT, str(work)) for key, value in environment.items()}
    environment.setdefault("PATH", os.environ["PATH"])
    done = subprocess.run(words, cwd=work / JOB, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def app(folder, executor="shared_components.flare.executor.SiteExecutor", file="config_fed_client.json"):
    """Write the job's configuration of the site, as FLARE deploys it."""
    config = folder / JOB / "app_hospital-a" / "config"
    config.mkdir(parents=True)
    values = json.loads(CLIENT_CONFIG.read_text())
    values["executors"][0]["executor"]["path"] = executor
    (config / file).write_text(json.dumps(values))
    (folder / JOB / "meta.json").write_text(json.dumps({"job_id": JOB}))


def test_a_prepared_kit_is_open_until_it_is_secured_again(kits, kind):
    folder = prepare(kits / "hospital-a", kind)
    kit = find_kit(folder)
    assert "no such file" in open_problem(kit)
    lines = secure(kit)
    assert any("Launcher starts jobs" in line for line in lines) and open_problem(kit) == ""
    assert secure(kit) == []
    edit(kit.local / "comm_config.json", lambda v: v["internal"]["resources"].update(connection_security="clear"))
    assert "internal" in open_problem(kit)
    secure(kit)
    assert open_problem(find_kit(folder)) == ""


def test_a_job_process_in_a_cluster_ends_if_its_kit_is_not_restricted(kits, kind, monkeypatch):
    folder = prepare(kits / "hospital-a", kind)
    secure(find_kit(folder))
    app(folder)
    command, environment, work = launch(folder, monkeypatch)
    (work / "local" / "resources.json").unlink()
    code, output = run(command, environment, work)
    assert code == 1 and "it would run unprotected" in output, output


def test_a_job_process_in_a_cluster_refuses_a_class_outside_the_allow_list(kits, kind, monkeypatch):
    folder = prepare(kits / "hospital-a", kind)
    secure(find_kit(folder))
    app(folder, "nvflare.app_common.np.np_trainer.NPTrainer")
    command, environment, work = launch(folder, monkeypatch)
    code, output = run(command, environment, work)
    assert code == ProcessExitCode.UNSAFE_COMPONENT and "is not in allow_list" in output, output
    assert "\n    | Traceback" in output  # `KeepToTheServer` marks lines, with all other patches of its constructor


def test_requests_of_a_job_to_the_launcher_are_ignored(kits, kind, monkeypatch):
    """`launch` also asserts the image, GPUs, memory and mounts of `GREEDY`'s request."""
    folder = prepare(kits / "hospital-a", kind)
    secure(find_kit(folder), gpus=3)
    secure(find_kit(folder))
    args = json.loads((folder / "local" / "resources.json").read_text())["components"]
    (entry,) = (one["args"]["resources"] for one in args if one["id"].endswith("_launcher"))
    assert entry == {"num_of_gpus": 3, "memory": "8Gi"}
    secure(find_kit(folder), gpus=1)
    command, environment, _ = launch(folder, monkeypatch)
    script = Path(command[1]).read_text(encoding="utf-8") if kind == "slurm" else ""
    assert environment.get("PYTHONSAFEPATH") == "1" or "export PYTHONSAFEPATH=1\n" in script


@pytest.mark.parametrize("kind", ["docker", "k8s"])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("mode: rw", "mode: ro", "would be lost"), ("mode: ro", "mode: rw", "/data/default/data is writable")],
)
def test_a_container_with_writable_data_or_without_a_place_for_the_models_is_refused(
    kits, kind, monkeypatch, old, new, words
):
    folder = prepare(kits / "hospital-a", kind)
    secure(find_kit(folder))
    path = folder / "local" / RUNTIME
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RuntimeError, match=words):
        launch(folder, monkeypatch)


def test_own_files_of_a_hospital_survive_the_next_secure_kit(kits):
    folder = prepare(kits / "hospital-a", "k8s")
    secure(find_kit(folder))
    for name in (RUNTIME, "job_pod.yaml"):
        (folder / "local" / name).write_text((folder / "local" / name).read_text() + "# ours\n")
    assert secure(find_kit(folder)) == []


def test_a_secured_kit_that_is_prepared_twice_is_secured_again(kits, capsys):
    folder = prepare(kits / "hospital-a", "docker")
    secure(find_kit(folder))
    again = prepare(folder, "docker")
    assert main(["secure-kit", "--check", str(again)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["secure-kit", str(again)]) == 0 == main(["secure-kit", "--check", str(again)])
    script = (again / "startup" / "start_docker.sh").read_text()
    assert script.count("-e PYTHONSAFEPATH=1") == 1
    subprocess.run(["bash", "-n", again / "startup" / "start_docker.sh"], check=True)


def test_a_prepared_server_is_refused_with_the_remedy(kits):
    config = kits / "server.yaml"
    config.write_text(yaml.safe_dump(CONFIGS["docker"]))
    out = kits / "prepared-server"
    prepare_deployment(Namespace(kit=str(kits / "localhost"), output=str(out), config=str(config)))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(KitError, match="start the server without nvflare deploy prepare"):
        secure(find_kit(out))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_unknown_launcher_and_two_launchers_are_refused(kits):
    folder = prepare(kits / "hospital-a", "docker")
    default = folder / "local" / "resources.json.default"
    edit(default, lambda v: v["components"].append({"id": "k8s_launcher", "path": "own.Launcher", "args": {}}))
    with pytest.raises(KitError, match=r"own\.Launcher: is no launcher"):
        secure(find_kit(folder))
    edit(default, lambda v: v["components"][-1].update(path=f"{FLARES}slurm.ClientSlurmJobLauncher"))
    with pytest.raises(KitError, match="2 launchers"):
        secure(find_kit(folder))


@pytest.mark.parametrize("gpus", ["two", "-1", "1.5", "²"])
def test_a_number_of_gpus_that_is_no_number_is_refused(kits, capsys, gpus):
    with pytest.raises(SystemExit):
        main(["secure-kit", str(kits / "hospital-a"), f"--gpus={gpus}"])
    assert "is no number of GPUs" in capsys.readouterr().err


def test_gpus_of_a_kit_that_is_not_prepared_are_refused(kits):
    with pytest.raises(KitError, match="--gpus is for kits of nvflare deploy prepare"):
        secure(find_kit(kits / "hospital-a"), gpus=1)


@pytest.mark.parametrize("resources", [{"num_of_gpus": "two"}, {"memory": "lots"}, {"disk": 1}])
def test_a_launcher_refuses_resources_that_it_cannot_read(resources):
    with pytest.raises(ValueError, match=r"num_of_gpus|memory|unsupported"):
        DockerLauncher(resources=resources)


def test_network_policies_take_names_and_ports_from_the_kit(kits):
    """FLARE's chart labels the site's pod with the policy's name; the job's label is in `job_pod.yaml`."""
    folder = prepare(kits / "hospital-a", "k8s")
    secure(find_kit(folder))
    site, jobs = yaml.safe_load_all((folder / "helm_chart/templates/network.yaml").read_text(encoding="utf-8"))
    label = yaml.safe_load((folder / "local/job_pod.yaml").read_text(encoding="utf-8"))["metadata"]["labels"]
    assert jobs["spec"]["podSelector"]["matchLabels"] == label
    assert site["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "hospital-a"}
    out = [[port["port"] for port in rule["ports"]] for rule in site["spec"]["egress"]]
    assert out == [[53, 53], [443, 6443], [8002]]
    (_, to_site), listener = jobs["spec"]["egress"], json.loads((folder / "local/comm_config.json").read_text("utf-8"))
    assert to_site["ports"][0]["port"] == listener["internal"]["resources"]["port"] == 8102
    assert to_site["to"] == [{"podSelector": site["spec"]["podSelector"]}]
    assert jobs["spec"]["ingress"] == [] and site["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("file", ["local/study_runtime.yaml", "helm_chart/values.yaml"])
@pytest.mark.parametrize("text", ["a: [", "- 1", "\x00"])
def test_a_damaged_file_of_a_prepared_kit_is_named_and_nothing_is_written(kits, capsys, file, text):
    folder = prepare(kits / "hospital-a", "k8s")
    (folder / file).write_text(text)
    assert main(["secure-kit", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(folder / file) in error and "prepare the kit again" in error, error
    assert not (folder / "local" / "resources.json").exists()
