"""First steps of a bundle: error messages, progress, and a checkpoint's task and network."""

import json
import logging
import sys
from pathlib import Path

import pytest
import torch
import yaml

from shared_components import bundle_engines as engines
from shared_components.bundle_engines import bundle_root, input_size, own_checkpoint, prepare
from shared_components.cli import main
from shared_components.common.atomic import not_written
from shared_components.common.progress import listening, report_progress
from shared_components.core.bundle import load_bundle
from shared_components.core.shipped_weights import EXPORTED, FACTS, MODEL, sha256_of
from shared_components.core.task import make_task
from shared_components.data.files.images import DataError
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.networks.bundle_config import build_network, bundle_names
from shared_components.networks.checkpoints import export_pt, load_metadata, load_weights, save_pt, save_weights
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny
from tests.bundles.conftest import scored_by_hand
from tests.common.test_progress import Terminal, seen


@pytest.mark.parametrize("key", ["outputs", "classes", None])
def test_names_of_outputs_come_from_the_header_or_are_numbers_one_per_channel(tmp_path, key):
    """Older headers have only `classes`."""
    path, network = tmp_path / "model.safetensors", Tiny(out_channels=3)
    save_weights(path, network.state_dict(), {"task": "segmentation", key: "background,shaft,wrist"} if key else {})
    task = engines.task_from_checkpoint({"segmentation": {}}, str(path), network)
    assert task.card.outputs == (("background", "shaft", "wrist") if key else ("0", "1", "2"))


def test_a_bundles_own_checkpoint_is_what_it_ships_until_a_person_puts_a_model_pt_in_its_place(tmp_path):
    shipped, exported = tmp_path / MODEL, tmp_path / EXPORTED
    save_weights(shipped, {"a": torch.ones(2).half()}, {"height": "64", "width": "96"})
    (tmp_path / FACTS).write_text(json.dumps({"sha256": sha256_of(shipped)}))
    assert own_checkpoint(str(tmp_path)) == str(shipped)
    save_pt(exported, {"a": torch.ones(2).half(), "helper": torch.zeros(1)}, load_metadata(shipped))
    assert own_checkpoint(str(tmp_path)) == str(shipped)
    save_pt(exported, {"a": torch.zeros(2)}, {"height": "32", "width": "32"})
    assert own_checkpoint(str(tmp_path)) == str(exported)
    assert input_size(own_checkpoint(str(tmp_path)), 1, 1) == (32, 32)
    assert load_weights(exported)["a"].tolist() == [0, 0]


def test_the_bundles_root_is_where_its_config_lies_or_else_the_working_directory(prepare, bundles):
    assert bundle_root() == "."
    for bundle in bundle_names():
        workflow = prepare(bundle, "train", site_config="unused")
        workflow.initialize()
        assert workflow.bundle_root == str(bundles / bundle)
    options = prepare("pvt_fpn", "train", site_config="unused", bundle_root="/elsewhere")
    options.initialize()
    assert options.bundle_root == "/elsewhere"


@pytest.fixture(autouse=True)
def _restored():
    """Restore the factory of log records and the progress listener."""
    before = logging.getLogRecordFactory()
    with listening(lambda step: None):
        yield
    logging.setLogRecordFactory(before)


def printed(error, monkeypatch, capsys):
    """Return what an uncaught error prints, wrapped as MONAI wraps it."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    prepare.explain_errors()
    wrapped = RuntimeError("Failed to evaluate")
    wrapped.__cause__ = error
    sys.excepthook(RuntimeError, wrapped, None)
    return capsys.readouterr().err


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(("error", "sentence"), [
    (DataError(Path("a.png"), "is damaged", "copy it again"), "error: a.png: is damaged; copy it again\n"),
    (DataError(Path("a\x1b[2J.png"), "is damaged", "copy it again"), "error: a.png: is damaged; copy it again\n"),
    (not_written(Path("b.pt"), FULL), "error: b.pt: could not be written (No space left on device)"),
    (FULL, "error: a file in output_dir: No space left on device; "),
    (OSError(20, "Not a directory", "out"), "error: out: Not a directory; correct the path"),
])  # fmt: skip
def test_a_damaged_file_a_full_disk_and_a_wrong_path_are_one_plain_sentence(error, sentence, monkeypatch, capsys):
    message = printed(error, monkeypatch, capsys)
    assert message.startswith(sentence) and message.count("\n") == 1


@pytest.mark.parametrize(
    "error, lines", [(DataError(Path("a.png"), "is damaged", "copy it again"), 1), (KeyError("x"), 5)]
)
def test_what_engines_log_of_an_error_is_one_line_where_it_is_for_a_person(error, lines, monkeypatch, caplog):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    prepare.explain_errors()
    try:
        raise error
    except Exception as caught:
        logging.getLogger("ignite").exception("Exception: %s", caught)
    assert len(caplog.text.splitlines()) == lines


def test_other_errors_keep_their_traceback(monkeypatch, capsys):
    for error in (OSError("of no file"), KeyError("x")):
        assert "Failed to evaluate" in printed(error, monkeypatch, capsys)


@pytest.fixture(params=["model.safetensors", "model.pt"])
def model_of(request, tmp_path):
    """Return a function that writes a bundle's model as a federation or the zoo does."""

    def model_of(bundle):
        torch.manual_seed(1)
        path = tmp_path / "model.safetensors"
        save_weights(path, build_network(load_bundle(bundle).network).state_dict(), {"bundle": bundle})
        if request.param == "model.pt":
            export_pt(path, tmp_path / "model.pt")
        return str(tmp_path / request.param)

    return model_of


@pytest.mark.parametrize(("trained", "used"), [("pvt_fpn", "pfedsis"), ("pfedsis", "pvt_fpn")])
def test_a_model_scores_the_same_with_both_bundles_evaluate(run, model_of, trained, used, site_config, small, tmp_path):
    result = []
    for bundle in (trained, used):
        out = tmp_path / bundle
        options = {"site_config": str(site_config), "checkpoint": model_of(trained), "output_dir": str(out)}
        run(bundle, "train", "evaluate", **options, **small)
        result.append(json.loads((out / "metrics.json").read_text()))
    assert result[0] == result[1]


def test_the_network_is_that_of_the_bundle_which_the_header_names_or_of_the_config_in_use(site_config, tmp_path):
    path = tmp_path / "model.safetensors"
    task = make_task("segmentation", classes=load_site(site_config).classes)
    save_weights(path, PvtFpn().state_dict(), {"bundle": "pvt_fpn"})
    network = engines.trained_network_for(PvtFpn(appearance_head=True, dropout=0.5), task, str(path), bundle="pfedsis")
    assert network.state_dict().keys() == load_weights(path).keys()
    assert network.decoder_global.dropout.p == load_bundle("pvt_fpn").network.get("dropout", 0.2)
    network = engines.trained_network_for(PvtFpn(dropout=0.5), task, str(path), bundle="pvt_fpn")
    assert network.decoder_global.dropout.p == 0.5


@pytest.mark.parametrize("configs", [("train", "evaluate"), ("inference",)])
def test_a_bundle_that_is_not_here_is_named(run, refusal, site_config, video, tmp_path, configs):
    path = tmp_path / "model.safetensors"
    save_weights(path, {"weight": torch.ones(1)}, {"bundle": "elsewhere"})
    own = {"input": str(video)} if configs == ("inference",) else {"site_config": str(site_config)}
    sentence = refusal(run, "pfedsis", *configs, checkpoint=str(path), output_dir=str(tmp_path / "out"), **own)
    assert f"{path} is a checkpoint of another network than PvtFpn" in sentence
    names = ", ".join(bundle_names())
    assert sentence.endswith(f"its bundle 'elsewhere' is not installed, only {names}")


TRAINING = {"height": 64, "width": 96, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}
FRAMES = {"segmentation": {"frames": 1, "interval": 0.0}}
SINGLE = {"temporal": False, "text": "none"}
CHOICES = [("fedavg", {}, SINGLE), ("fedst", {"synthetic": "none"}, {"temporal": False, "text": "prompt"})]


@pytest.fixture
def federated(site_config, tmp_path):
    """Return a function that federates two sites of the same frames for a round; it returns the best model."""
    described = yaml.safe_load(site_config.read_text()) | {"text": "porcine nephrectomy"}
    site_config.write_text(yaml.safe_dump(described))

    def federated(method, arguments, network):
        settings = {"training": TRAINING, "tasks": FRAMES, "network": network, "rounds": 1}
        job = Job("chosen", "fedst", method, arguments=arguments, **settings)
        folder = run_together(job, {"a": site_config, "b": site_config}, tmp_path / "runs").folder
        return folder / "a" / "best.safetensors"

    return federated


@pytest.mark.slow
@pytest.mark.parametrize(("method", "arguments", "network"), CHOICES)
def test_the_best_model_is_scored_as_directly(run, federated, site_config, tmp_path, method, arguments, network):
    best = federated(method, arguments, network)
    assert json.loads(load_metadata(best)["network"]) == network
    options = {"site_config": str(site_config), "checkpoint": str(best), "output_dir": str(tmp_path / "out")}
    run("fedst", "train", "evaluate", **options)
    result = json.loads((tmp_path / "out" / "metrics.json").read_text())

    direct = PvtFpnClips(out_channels=4, **network).eval()
    direct.load_state_dict(load_weights(best))
    expected = scored_by_hand(site_config, lambda image: direct(image).argmax(1)[0], ("shaft", "wrist", "clasper"))
    assert result["frames"] == 2 and {key: result[key] for key in expected} == expected


def test_it_is_shown_by_inference_and_by_surgfl_segment(run, federated, video, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best = federated(*CHOICES[0])
    run("fedst", "inference", input=str(video), checkpoint=str(best), output_dir=str(tmp_path / "out"))
    assert (tmp_path / "out" / "overlay.mp4").stat().st_size > 0
    assert main(["segment", str(video), "--model", str(best), "--out", "seen", "--threads", "1"]) == 0
    masks = [sorted((tmp_path / name / "masks").glob("*.png")) for name in ("out", "seen")]
    assert len(masks[0]) == len(masks[1]) == 5
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*masks, strict=True))


@pytest.mark.parametrize(("message", "sentence"), [
    ({"_target_": "os.system"}, "'_target_' is set by the bundle and cannot be chosen"),
    ({"text": "$exit()"}, "text is the expression '$exit()'"),
    ({"temporal": False, "text": "selection"}, "network than PvtFpnClips: it lacks indicator, selection.16"),
    (None, "it lacks indicator, temporal.16"),  # and no temporal layer is made up
])  # fmt: skip
def test_a_header_that_lies_or_says_nothing_is_refused_by_file(run, refusal, site_config, tmp_path, message, sentence):
    path = tmp_path / "model.safetensors"
    options = {"site_config": str(site_config), "checkpoint": str(path), "output_dir": str(tmp_path / "out")}
    notes = {"network": json.dumps(message), "numbers": json.dumps(FRAMES["segmentation"])}
    if message is None:
        notes, options = {}, options | {"tasks#segmentation#frames": 1}
    save_weights(path, PvtFpnClips(**SINGLE).state_dict(), {"bundle": "fedst", **notes})
    result = refusal(run, "fedst", "train", "evaluate", **options)
    assert sentence in result and result.startswith(f"checkpoint {path}")
    assert not (tmp_path / "out").exists()


def test_plain_weights_are_scored_with_the_same_said_on_the_command_line(run, site_config, tmp_path):
    """Options replace a header, as in docs/how-to/run-a-job.md."""
    torch.manual_seed(1)
    noted, plain = tmp_path / "model.safetensors", tmp_path / "model.pt"
    notes = {"bundle": "fedst", "network": json.dumps(SINGLE), "task": "segmentation"}
    notes |= {"numbers": json.dumps(FRAMES["segmentation"])}
    save_weights(noted, PvtFpnClips(**SINGLE).state_dict(), notes)
    torch.save(load_weights(noted), plain)
    small = {f"training#{name}": TRAINING[name] for name in ("height", "width")}
    by_hand = {f"network_def#{name}": value for name, value in SINGLE.items()}
    by_hand |= {"tasks#segmentation#frames": 1}
    result = []
    for path, options in ((noted, {}), (plain, by_hand)):
        out = tmp_path / path.suffix
        options |= {"site_config": str(site_config), "checkpoint": str(path), "output_dir": str(out), **small}
        run("fedst", "train", "evaluate", **options)
        result.append(json.loads((out / "metrics.json").read_text()))
    assert result[0]["dice"] == result[1]["dice"] and result[0]["assd"] == result[1]["assd"]


def test_on_a_terminal_printed_and_logged_lines_stay_above_a_bar(monkeypatch):
    terminal, closing, logger = Terminal(), [], logging.getLogger("bundle")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(prepare.atexit, "register", closing.append)
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    prepare.show_progress()
    report_progress("frame", 3, 9)
    board = closing[0].__self__
    board.look()
    print("a printed line")
    logger.warning("a logged line")
    board.close()
    logger.removeHandler(handler)
    lines = [line.strip() for line in seen(terminal).splitlines()]
    assert "a printed line" in lines and "a logged line" in lines and any("3/9" in line for line in lines)


@pytest.mark.parametrize(("rank", "lines"), [("0", ["frame 3/9"]), ("1", [])])
def test_elsewhere_the_first_process_logs_its_steps(monkeypatch, caplog, rank, lines):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("shared_components.common.progress_display.PAUSE", 0.0)
    prepare.show_progress()
    with caplog.at_level(logging.INFO):
        report_progress("frame", 3, 9)
    assert [record.getMessage() for record in caplog.records] == lines
