"""`surgfl preflight` reports the parts of a job that a site refuses, by FLARE's own rule and by ours."""

import json
import shutil

import pytest

from shared_components.cli import main
from shared_components.flare.deployment.job_folder import read_job_folder
from shared_components.flare.deployment.kits import ALLOW_LIST, FILTER, GUARD
from tests.federation.conftest import rewritten, scenes  # noqa: F401 (a fixture)
from tests.flare.simulator import CLIENT, JOBS, SERVER, edit

EXECUTOR = "shared_components.flare.executor.SiteExecutor"


@pytest.fixture
def job(tmp_path):
    """Return a copy of a job as it is submitted: without the simulator's folder."""
    shutil.copytree(JOBS / "fedper", tmp_path / "job")
    shutil.rmtree(tmp_path / "job" / "app" / "custom")
    return tmp_path / "job"


def kit(tmp_path, listed=(), *, default=False, **permissions):
    """Return a site's startup kit with this list of classes."""
    root = tmp_path / "kit"
    for part in ("startup", "local"):
        (root / part).mkdir(parents=True)
    (root / "startup" / "fed_client.json").write_text("{}")
    resources = {"class_allow_list": list(listed)} if listed is not None else {}
    (root / "local" / ("resources.json.default" if default else "resources.json")).write_text(json.dumps(resources))
    if permissions:
        (root / "local" / "authorization.json").write_text(json.dumps({"permissions": permissions}))
    return root


def preflight(capsys, *arguments):
    code = main(["preflight", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.out + output.err


@pytest.mark.parametrize("name", sorted(path.parent.name for path in JOBS.glob("*/meta.json")))
def test_no_job_of_ours_brings_what_a_site_refuses(name):
    folder = read_job_folder(JOBS / name)
    assert (folder.problems, folder.code, folder.unneeded, len(folder.named)) == ((), (), (), 3)
    listed = json.loads(ALLOW_LIST.read_text())
    for side in ("server", "client"):
        assert sorted(one.path for one in folder.named if one.side == side) == listed[side]["class_allow_list"]


@pytest.mark.full_width
def test_a_job_is_described(job, capsys):
    code, text = preflight(capsys, job)
    assert code == 0 and "code: none\n" in text and "files that nobody needs: none" in text
    local = next(line for line in text.splitlines() if line.startswith("LOCAL"))
    assert "stays" in local and "megabytes: 20.40 per round" in text  # 5,100,128 float32 numbers


def test_a_method_alone_is_described_by_its_own_defaults(capsys):
    code, text = preflight(capsys, "pfedsis")
    assert code == 0 and "sensitivity" in text and "MIXED" in text


@pytest.mark.parametrize(
    ("listed", "refused"),
    [
        ([EXECUTOR, FILTER], False), (["shared_components."], False), (["shared_components.flare."], False),
        (["shared_components.flare"], False), (["*"], False), ([EXECUTOR], True), ([EXECUTOR[:-6]], True),
        (["nvflare."], True), (["shared_components"], True), ([""], True), ([], True), (None, True),
    ],
)  # fmt: skip
def test_a_kits_list_decides_as_flare_would(job, tmp_path, capsys, listed, refused):
    code, text = preflight(capsys, job, "--kit", kit(tmp_path, listed, default=listed == []))
    assert code == int(refused) and ("REFUSED: " in text) == refused
    assert ("every class is allowed" in text) == (listed == ["*"])
    if listed and listed == [EXECUTOR]:
        assert f"{FILTER} is refused by" in text and "task_result_filters.#1.filters.#1" in text


def test_a_list_that_only_warns_is_reported(job, tmp_path, capsys):
    root = kit(tmp_path, [])
    edit(root / "local" / "resources.json", lambda v: v.update(class_list_enforcement_mode="warn"))
    code, text = preflight(capsys, job, "--kit", root)
    assert code == 0 and "class_list_enforcement_mode is 'warn'" in text


def test_code_is_named_and_distinguished_from_the_simulators_empty_folder(job, tmp_path, capsys):
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / ".gitkeep").write_text("")
    assert preflight(capsys, job)[0] == 0
    strict = kit(tmp_path, ["shared_components."], lead={"submit_job": "any", "byoc": "none"}, member={"view": "any"})
    code, text = preflight(capsys, job, "--kit", strict)
    assert code == 1 and "app/custom is there, empty, and the site forbids code" in text
    (job / "app" / "custom" / "evil.py").write_text("raise SystemExit(9)")
    code, text = preflight(capsys, job)
    assert code == 1 and "it brings code: app/custom/evil.py" in text


MESSAGES = [
    (SERVER, lambda v: v["workflows"][0]["args"]["arguments"].update(personal="$import os"), "is the expression"),
    (SERVER, lambda v: v["workflows"][0]["args"].update(bundle="../../evil"), "'../../evil' does not exist"),
    (SERVER, lambda v: v["workflows"][0]["args"].update(rounds=10**30), "rounds is"),
    (SERVER, lambda v: v["workflows"][0].update(config_type="dict"), "unknown key workflows.#1.config_type"),
    (SERVER, lambda v: v.update(handlers=[]), "unknown key handlers"),
    (SERVER, lambda v: v["components"].append({**v["workflows"][0], "id": "x"}), "is a second controller, or no work"),
    (SERVER, lambda v: v["workflows"].append({**v["workflows"][0], "id": "x"}), "is a second controller, or no work"),
    (SERVER, lambda v: v["components"].append({"id": "x", "path": "os.system", "args": {"command": ""}}), "os.system"),
    (CLIENT, lambda v: v["components"].append({"id": "x", "path": "nvflare.app_common.np.np_trainer.NPTrainer"}), "NP"),
    (CLIENT, lambda v: v["executors"][0]["executor"]["args"].update(x={"path": "os.system", "args": {}}), "names code"),
    (CLIENT, lambda v: v["executors"][0]["executor"].update(path="subprocess.Popen"), "subprocess.Popen is refused"),
    (CLIENT, lambda v: v["components"].append({"id": "x", "name": "FedAvg"}), ".name; leave it out"),
    ("meta.json", lambda v: v.update(launcher_spec={"a": {"docker": {"image": "evil"}}}), "key 'launcher_spec'"),
    ("meta.json", lambda v: v.update(resource_spec={"site-1": {"x": "$exit()"}}), "is the expression"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "change", "words"), MESSAGES)
def test_values_beside_names_and_numbers_are_refused(job, capsys, file, change, words):
    edit(job / file, change)
    code, text = preflight(capsys, job)
    assert code == 1 and words in text and "Traceback" not in text


@pytest.mark.parametrize(
    "name", ["app/config/log_config.json", "app/model.pt", "weights.safetensors", "app/config/config_fed_client.conf"]
)
def test_files_that_nobody_needs_are_named(job, capsys, name):
    (job / name).write_text("x")
    code, text = preflight(capsys, job)
    assert code == 1 and f"{name} is a file that nobody needs" in text


def test_no_text_of_a_job_controls_the_terminal(job, capsys):
    (job / "a\x1b[8m.txt").write_text("x")
    edit(job / SERVER, lambda v: v["components"].append({"id": "x", "path": "os.system\x1b[2K"}))
    code, text = preflight(capsys, job)
    assert code == 1 and "\x1b" not in text and "os.system" in text


def test_a_link_is_refused(job, tmp_path, capsys):
    (tmp_path / "elsewhere.json").write_text((job / CLIENT).read_text())
    (job / CLIENT).unlink()
    (job / CLIENT).symlink_to(tmp_path / "elsewhere.json")
    assert preflight(capsys, job)[0] == 2


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (CLIENT, "{"), (CLIENT, "[]"), (CLIENT, '{"executors": 3}'), (CLIENT, '{"executors": [{"executor": 3}]}'),
        (CLIENT, "[" * 200_000), (CLIENT, " " * 2_000_000), ("meta.json", "{}"), (CLIENT, "\udcff"),
    ],
)  # fmt: skip
def test_an_unreadable_job_ends_with_2_and_one_sentence(job, capsys, file, text):
    (job / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    code, output = preflight(capsys, job)
    assert code == 2 and output.count("\n") == 1 and "Traceback" not in output


def test_other_wrong_arguments_end_with_2(job, tmp_path, capsys):
    assert preflight(capsys, "nosuch")[0] == 2
    assert preflight(capsys, job, "--kit", tmp_path)[0] == 2
    assert preflight(capsys, job, "--allow-list", tmp_path / "no.json")[0] == 2
    assert preflight(capsys, job, "--site", tmp_path / "no.yaml")[0] == 2


def test_the_sites_own_consent_and_limits_count(scenes, tmp_path, capsys):  # noqa: F811
    site = rewritten(scenes[0], tmp_path / "own", publish=[], withhold=["scores"])
    code, text = preflight(capsys, JOBS / "pfedsis", "--site", site, "--json", tmp_path / "leaves.json")
    assert code == 1 and "does not publish 'style', which pfedsis needs" in text
    parts = {(p["task"], p["name"]): p for p in json.loads((tmp_path / "leaves.json").read_text())["parts"]}
    assert not parts["round", "metrics"]["leaves"] and not parts["enrol", "style"]["leaves"]
    site.with_name("limits.yaml").write_text("iterations: 5\n")
    code, text = preflight(capsys, JOBS / "fedavg", "--site", site)
    assert code == 1 and "training.iterations is 16, and the site allows at most 5" in text


def test_a_kit_without_the_guard_has_a_warning(job, tmp_path, capsys):
    root = kit(tmp_path, [EXECUTOR, FILTER])
    code, text = preflight(capsys, job, "--kit", root)
    assert code == 0 and f"WARNING: {root / 'local' / 'resources.json'} has no component {GUARD}" in text
    assert "surgfl secure-kit" in text
    edit(root / "local" / "resources.json", lambda v: v.update(components=[{"id": "peers", "path": GUARD}]))
    assert "WARNING" not in preflight(capsys, job, "--kit", root)[1]
    assert "WARNING" not in preflight(capsys, "fedper")[1], "the list that ships here is no kit's"
