"""The supply-chain checks find problems, and report checks that they could not make."""

import configparser
import json
import os
import pickle
import re
import subprocess
import zipfile
from pathlib import Path

import nvflare.lighter
import pytest
import yaml

from evidence.supply_chain import checks
from evidence.supply_chain.__main__ import as_table
from evidence.supply_chain.checks import BAD, LOCK, NOT_DONE, WELL, Row


def test_the_lock_file_pins_everything_with_hashes_and_no_address():
    row = checks.lock()
    assert row.verdict == WELL, row.figures
    assert len(checks.pins(LOCK)) > 80 and checks.pins(LOCK)["torch"] == "2.13.0"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("numpy==2.4.6", "numpy==2.4.5", "numpy 2.4.5, not 2.4.6"), ("numpy==", "numpyy==", "numpy"),
        ("--hash=sha256:", "--hash=md5:", "absl-py"), ("absl-py==", "absl-py>=", "absl-py>="),
        ("absl-py==", "--index-url https://host.example/simple\nabsl-py==", "https://host.example/simple"),
    ],
)  # fmt: skip
def test_a_lock_file_that_pins_something_else_or_names_a_host_is_bad(tmp_path, old, new, words):
    path = tmp_path / "requirements.lock"
    path.write_text(LOCK.read_text().replace(old, new))
    row = checks.lock(path)
    assert row.verdict == BAD and words in row.figures


def test_an_audit_without_known_packages_is_not_a_good_result():
    """pip-audit itself reports "No known vulnerabilities found" for packages that it could not look up."""
    skipped = [{"name": "numpy", "skip_reason": "Dependency not found"}]
    clean = [{"name": "torch", "version": "2", "vulns": []}]
    holed = [{"name": "torch", "version": "1", "vulns": [{"id": "CVE-1"}]}]
    verdicts = [checks.told(found).verdict for found in (clean, [*clean, *skipped], skipped, [], [*holed, *skipped])]
    assert verdicts == [WELL, NOT_DONE, NOT_DONE, NOT_DONE, BAD]
    table = as_table([Row("one", "1", WELL), Row("two", "nothing", NOT_DONE)])
    assert table.endswith("1 of 2 rows well; not done: two")


def test_every_part_of_a_licence_must_be_on_the_list():
    good = ["MIT", "Apache-2.0 AND MIT", "BSD License; Mozilla Public License 2.0 (MPL 2.0)"]
    bad = ["GNU General Public License (GPL)", "MIT AND GPL-3.0", "AGPL-3.0-only", "UNKNOWN", ""]
    assert [text for text in (*good, *bad) if checks.unlicensed(text)] == bad


def test_sources_here_unpickle_nothing_and_shipped_weights_are_tensors(tmp_path):
    row = checks.pickles(tmp_path)
    assert row.verdict == WELL, row.figures


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch.load(p, weights_only=True)", 0), ("yaml.safe_load(t)", 0), ("network.eval()", 0),
        ("torch.load(p)", 1), ("torch.load(p, weights_only=flag)", 1), ("np.load(p, allow_pickle=True)", 1),
        ("pickle.loads(b)", 1), ("yaml.load(t, Loader=X)", 1), ("eval('1')", 1),
    ],
)  # fmt: skip
def test_a_call_that_runs_what_it_reads_is_found(tmp_path, source, found):
    path = tmp_path / "a.py"
    path.write_text(source)
    assert len(checks.risky(path)) == found


def test_a_hostile_pickle_is_inspected_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "marker"), "w")

    for protocol in (2, 4):
        path = tmp_path / f"model-{protocol}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", pickle.dumps(Evil(), protocol=protocol))
        (name,) = checks.globals_of(path)
        assert name.endswith(" open") and not checks.ALLOWED_GLOBALS.match(name)
    assert not (tmp_path / "marker").exists()


def test_containers_run_without_rights_and_cannot_write_to_the_data():
    services = yaml.safe_load((checks.DOCKER / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        mounts = [volume.rpartition("}")[2] for volume in service["volumes"]]
        assert mounts[:3] == [":/kit", "/local:/kit/local:ro", "/startup:/kit/startup:ro"], name
        assert all(mount.endswith(":ro") for mount in mounts[1:]), name
        assert service["mem_limit"] == "${SURGFL_MEMORY:-8g}" and 0 < service["pids_limit"] <= 4096, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "ports" not in service or name == "server"
    profiles = [service["profiles"] for service in services.values() if "extends" not in service]  # would add to them
    assert sorted(profiles) == [["gpu"], ["server"], ["site"]]
    assert any(volume.endswith(":/data:ro") for volume in services["site"]["volumes"])
    image = (checks.DOCKER / "Dockerfile").read_text()
    assert "--require-hashes --requirement requirements.lock" in image
    assert image.index("USER 10001") < image.index("CMD")
    assert "ENTRYPOINT" not in image  # FLARE's launchers give a container the whole command


def test_a_systemd_service_may_write_only_to_its_kit_and_reach_a_gpu():
    """The unit is in the guide; tests/docs checks the script that it starts."""
    (text,) = re.findall(r"```ini\n(.*?)```", (checks.ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8"), re.S)
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    kit = service["ExecStart"].removesuffix("/startup/sub_start.sh")
    assert service["ReadWritePaths"] == kit and service["ReadOnlyPaths"].split() == [f"{kit}/startup", f"{kit}/local"]
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"], service["User"]) == ("strict", "", "surgfl")
    kernel = ("ProtectKernelModules", "ProtectKernelTunables", "ProtectControlGroups")
    assert {service[name] for name in ("NoNewPrivileges", "PrivateTmp", *kernel)} == {"yes"}
    assert {"MemoryMax", "TasksMax", "SystemCallFilter", "RestrictAddressFamilies"} < set(service)
    hides_the_gpu = {"PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy", "MemoryDenyWriteExecute"}
    assert not hides_the_gpu & set(service)


def test_a_container_starts_after_the_previous_container_was_killed(tmp_path):
    """A new process may have the process id that the previous container left in a file."""
    (*shell, command) = json.loads(re.findall(r"^CMD (.+)", (checks.DOCKER / "Dockerfile").read_text(), re.M)[0])
    templates = Path(nvflare.lighter.__file__).parent / "templates"
    left = {name for file in templates.glob("*.yml") for name in re.findall(r"\b[a-z_]+\.fl\b", file.read_text())}
    assert {"daemon_pid.fl", "pid.fl"} < left
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "sub_start.sh").write_text("#!/bin/sh\nls\n")
    (tmp_path / "startup" / "sub_start.sh").chmod(0o700)
    for name in (*left, "log.txt"):
        (tmp_path / name).write_text(str(os.getpid()))
    done = subprocess.run([*shell, command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["log.txt", "startup"]
