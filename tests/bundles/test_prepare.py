"""First steps of a bundle: error messages, progress, and a checkpoint's task and network."""

import json
import logging
import sys
from pathlib import Path

import pytest
import torch

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
from tests.bundles.conftest import masks
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


@pytest.mark.parametrize("error, lines", [(DataError(Path("a.png"), "is damaged", "copy it"), 1), (KeyError("x"), 5)])
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
        return tmp_path / request.param

    return model_of


@pytest.mark.parametrize(("trained", "used"), [("pvt_fpn", "pfedsis"), ("pfedsis", "pvt_fpn")])
def test_both_bundles_score_a_model_alike(evaluated, model_of, trained, used, site_config, small, tmp_path):
    first, second = (
        evaluated(bundle, site_config, model_of(trained), tmp_path / bundle, **small) for bundle in (trained, used)
    )
    assert first == second


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


def test_inference_and_surgfl_segment_show_a_federations_model(run, site_config, video, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job("chosen", "fedst", "fedavg", training=TRAINING, tasks=FRAMES, network=SINGLE, rounds=1)
    folder = run_together(job, {"a": site_config, "b": site_config}, tmp_path / "runs").folder
    best = folder / "a" / "best.safetensors"
    run("fedst", "inference", input=str(video), checkpoint=str(best), output_dir=str(tmp_path / "out"))
    assert (tmp_path / "out" / "overlay.mp4").stat().st_size > 0
    assert main(["segment", str(video), "--model", str(best), "--out", "seen", "--threads", "1"]) == 0
    assert masks(tmp_path / "out") == masks(tmp_path / "seen") and len(masks(tmp_path / "seen")) == 5


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


def test_plain_weights_are_scored_with_the_same_said_on_the_command_line(evaluated, site_config, tmp_path):
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
    first, second = (
        evaluated("fedst", site_config, path, tmp_path / path.suffix, **options, **small)
        for path, options in ((noted, {}), (plain, by_hand))
    )
    assert first["dice"] == second["dice"] and first["assd"] == second["assd"]


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
