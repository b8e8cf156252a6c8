"""FedST's tables and figures as presets, and rows that differ in network, data or length."""

import functools
import hashlib
import json
import re
from dataclasses import replace

import pytest
import yaml

from shared_components.commands import _compare as compare
from shared_components.core.bundle import load_bundle
from shared_components.core.method import SiteFacts, load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.core.site_fingerprint import fingerprint
from shared_components.core.task import make_task
from shared_components.core.text.site_text import SiteText
from shared_components.core.training import check_network
from shared_components.data.check import check_site
from shared_components.data.files.classes import name_of
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison import plan, presets
from shared_components.experiments.comparison.plan import SCALES, DataChanges, Run, Variant, resolved
from shared_components.experiments.comparison.presets import PRESETS, with_arguments
from shared_components.experiments.comparison.sites import changed_sites, server_site, synthetic_sites
from shared_components.federation.messages import FederationError
from shared_components.networks.bundle_config import build_network, bundle_for, weightless
from shared_components.networks.parts import inside, parts_of
from tests.experiments.comparison import conftest
from tests.experiments.comparison.conftest import runs_of, tiny_site

FEDST = {name: preset for name, preset in PRESETS.items() if name.startswith("fedst-")}
PARTS = ("background", "shaft", "wrist", "clasper")
TINY_SCALE = replace(SCALES["quick"], frames_per_video=2, height=64, width=64)


def labels(name):
    return [row.variant.label for row in runs_of(name)]


def test_presets_have_the_rows_and_ticks_of_the_papers_tables():
    methods = ["Local Train", "Upper bound", "FedLD", "FedDP", "FedAvg", "FedRep", "FedAS", "FedST"]
    assert all(labels(f"fedst-table{number}") == methods for number in (2, 3, 8))
    assert labels("fedst-table6") == ["Norm", "Key", "Value", "Key&Value", "Ours (Query)"]
    assert labels("fedst-table7") == ["Random", "Gaussian", "One-hot", "Ours (text)"]
    assert labels("fedst-table9") == ["FedAvg", "FedLD", "FedDP", "FedRep", "FedAS", "FedST"]
    server = ["Without synthetic frames", "Fine-tuning at the server", "SERQ, D = 0", "SERQ", "Mixed into each site"]
    assert labels("fedst-figure5") == server
    assert labels("fedst-figure6") == [f"Every {n} iterations" for n in (10, 50, 100, 200, 500)]
    figure7 = labels("fedst-figure7")
    assert figure7[:4] == ["Local Train", "Local Train + synthetic", "Upper bound", "Upper bound + synthetic"]
    assert figure7[-2:] == ["FedST w/o SERQ", "FedST"] and len(figure7) == 16
    ticks = {n: [tuple(map(int, row.ticks)) for row in FEDST[f"fedst-table{n}"].variants] for n in (4, 5)}
    assert ticks[4] == [
        (0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0), (0, 0, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1),
    ]  # fmt: skip
    assert ticks[5] == [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 1, 0), (1, 0, 0)]
    for row in runs_of("fedst-table4"):
        network, method = row.open_bundle().network, load_method(row.variant.method, **row.variant.arguments)
        temporal, prompt, selection, serq = row.variant.ticks
        texts = {(False, False): "none", (True, False): "prompt", (True, True): "selection"}
        assert (network["temporal"], network["text"]) == (temporal, texts[prompt, selection])
        assert (method.server.update is not None) == serq == row.variant.needs_server
        assert row.clip == ((4, 0.2) if temporal else (1, 0.0))
    for row in runs_of("fedst-table5"):
        network = weightless(row.open_bundle().network)
        partition = partition_network(network, load_method("fedst", **row.variant.arguments).partition)
        local = {piece.tensor for piece in partition if piece.role is Role.LOCAL}
        parts = parts_of(network)
        personal = [
            all(inside(name, parts[part]) <= (name in local) for name in network.state_dict())
            for part in ("queries", "temporal_queries", "decoder")
        ]
        assert personal == list(row.variant.ticks)


@functools.cache
def shapes_of(definition):
    return weightless(json.loads(definition))


@pytest.mark.parametrize("name", FEDST)
@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_every_row_can_be_and_its_method_works_on_its_network(name, scale):
    for row in runs_of(name, scale):
        row.check()
        bundle = row.open_bundle()
        task = make_task("segmentation", bundle.tasks["segmentation"], classes=PARTS)
        method = load_method(row.variant.method, **row.variant.arguments)
        network = shapes_of(json.dumps(bundle.network))
        check_network(network, method, task)
        assert partition_network(network, method.partition)


def test_baselines_have_the_networks_19_71_megabytes_of_the_paper():
    for name in ("FedAvg", "FedLD", "FedDP", "FedRep"):
        (row,) = [row for row in runs_of("fedst-table9") if row.variant.label == name]
        numbers = sum(p.numel() for p in weightless(row.open_bundle().network, out_channels=4).parameters())
        assert round(4 * numbers / 2**20, 2) == 19.71


def test_all_rows_have_the_training_and_the_loss_of_fedsts_bundle():
    own = load_bundle("fedst")
    assert presets.FEDST_ROUNDS == own.training.rounds
    for name in FEDST:
        for row in runs_of(name):
            training, numbers = row.settings(), row.open_bundle().tasks["segmentation"]
            as_long = {"seed": 0, "iterations": 1, "rounds": 1}
            assert replace(training, **as_long) == replace(own.training, **as_long)
            assert all(numbers[k] == own.tasks["segmentation"][k] for k in ("cross_entropy", "log_iou", "dice"))
            assert row.rounds * training.iterations == 300 * 100 * (2 if row.variant.data.server_frames else 1)


def test_fedas_says_itself_that_it_cannot_have_the_others_network():
    bundle = Run(Variant("FedAS", "fedas", **presets.SINGLE_FRAMES), 1, 1, {}, {}).open_bundle()
    task = make_task("segmentation", bundle.tasks["segmentation"], classes=PARTS)
    with pytest.raises(ValueError, match="fedas needs a network with a shared and a personal path"):
        check_network(build_network(bundle.network), load_method("fedas"), task)
    assert all("FedAS" in FEDST[f"fedst-{name}"].remark for name in ("table2", "table3", "table9", "figure7"))


def test_the_papers_communication_frequencies_come_out_and_else_the_nearest_divisors():
    """36 steps by 1.2, 6, 24 and 60; 24 lies between 18 (a ratio of 1.33) and 36 (of 1.5)."""
    of_paper = [(3000, 10), (600, 50), (300, 100), (150, 200), (60, 500)]
    assert [plan.rounds_and_iterations(300, 100, share) for share in (0.1, 0.5, 1.0, 2.0, 5.0)] == of_paper
    assert [plan.rounds_and_iterations(3, 12, s) for s in (0.1, 0.5, 2.0, 5.0)] == [(36, 1), (6, 6), (2, 18), (1, 36)]
    assert plan.rounds_and_iterations(1, 1, 0.1) == plan.rounds_and_iterations(1, 1, 5.0) == (1, 1)


def test_the_server_has_the_sites_iterations_and_clips_indicator_its_vectors_width():
    runs = (runs_of("fedst-table4", scale) for scale in ("paper", "quick"))
    paper, quick = ({run.variant.label: run.variant.arguments for run in one} for one in runs)
    assert paper["FedST"] == {"batches": 100} and paper["FedDP"] == {}
    assert quick["TS + SERQ"] == {"batches": 12} and quick["TS"] == {"synthetic": "none"}
    for row in with_arguments(FEDST["fedst-figure6"], {"fedst": {"batches": 7}}).variants:
        assert resolved(Run(row, 1, 300, presets.FEDST_TRAINING, {})).variant.arguments == {"batches": 7}
    preset = with_arguments(FEDST["fedst-table7"], {"fedst": {"text_encoder": "clip"}})
    rows = [resolved(Run(row, 1, 1, {}, {})) for row in preset.variants]
    widths = {row.variant.arguments["text_encoder"]: row.open_bundle().network["indicator"] for row in rows}
    assert widths == {"random": 384, "gaussian": 384, "one_hot": 384, "clip": 512}


def test_rows_that_come_out_alike_are_one(tmp_path):
    args = parsed("--preset", "fedst-figure6", "--rounds", "1", "--iterations", "2", "--out", str(tmp_path))
    args.sites, args.server = three(tmp_path), server_at(tmp_path)
    runs = compare.planned(args, PRESETS["fedst-figure6"])
    assert [(r.variant.label, r.rounds) for r in runs] == [("Every 1 iterations", 2), ("Every 2 iterations", 1)]


def run_of(site, variant, **changes):
    return Run(variant, 1, 2, {"iterations": 3}, {"a": str(site)}, **changes)


@pytest.mark.parametrize("arguments", [{}, {"mu": 1.0}])
def test_names_of_earlier_comparisons_stay(site, arguments):
    """The digest as it was before rows had more than a method and its arguments."""
    values = {
        "variant": {"method": "fedprox", "arguments": arguments}, "seed": 1, "rounds": 2, "training": {"iterations": 3},
        "sites": {"a": fingerprint(str(site), bundle_for("fedprox"))}, "held_out": "", "threads": 1,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    assert run_of(site, Variant("A row", "fedprox", arguments)).name == f"a-row-seed-1-{digest}"
    assert run_of(site, Variant("A row", "fedprox", arguments, bundle="pvt_fpn")).name.endswith(digest)


def test_all_differences_of_a_row_are_part_of_its_name_and_of_its_job(site):
    plain = Variant("A", "fedavg", bundle="fedst")
    changes = [
        {"bundle": "pvt_fpn"}, {"network": {"temporal": False}}, {"network": {"text": "none"}},
        {"tasks": {"segmentation": {"dice": 2.0}}}, {"training": {"batch_size": 1}},
        {"data": DataChanges(server_frames=True)},
    ]  # fmt: skip
    runs = [run_of(site, replace(plain, **change)) for change in ({}, *changes)]
    assert len({run.name for run in runs} | {run_of(site, plain, server=str(site)).name}) == 8
    jobs = [run.job() for run in runs]
    assert "network" not in jobs[0] and "tasks" not in jobs[0] and jobs[0]["bundle"] == "fedst"
    assert jobs[1]["bundle"] == "pvt_fpn" and jobs[2]["network"] == {"temporal": False}
    assert jobs[4]["tasks"] == {"segmentation": {"dice": 2.0}} and jobs[5]["training"]["batch_size"] == 1
    assert all(Run.from_json(run.to_json()) == run for run in runs)
    clips = run_of(site, Variant("FedST", "fedst"))  # which the site cannot give: a dash beside rows that go on
    assert clips.name.startswith("fedst-seed-1-")


def test_a_row_begins_from_the_weights_of_its_own_bundle(tmp_path, monkeypatch):
    source = "shared_components.experiments.comparison.plan.source_of"
    monkeypatch.setattr(source, lambda start, bundle, file=None: (tmp_path / bundle, f"weights of {bundle}"))
    rows = [replace(row, start="rendered") for row in runs_of("fedst-table9")]
    assert [row.start_hash for row in rows] == [f"weights of {'pvt_fpn' if n == 4 else 'fedst'}" for n in range(6)]
    assert {row.job()["training"]["start"] for row in rows} == {"rendered"}


def test_wrong_values_of_a_row_are_refused_before_anything_runs():
    for change, message in (
        ({"bundle": "fedts"}, "bundle 'fedts' does not exist"), ({"network": {"temporl": False}}, "temporl"),
        ({"tasks": {"segmentation": {"dise": 1.0}}}, "dise"), ({"tasks": {"depth": {}}}, "does not learn 'depth'"),
        ({"training": {"iteration": 1}}, "iteration"), ({"arguments": {"personal": "queries"}}, "personal"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Run(replace(Variant("A", "fedst"), **change), 1, 1, {}, {}).check()


def parsed(*words):
    return conftest.parsed("--scale", "quick", "--seeds", "1", "--start", "random", *words)


def three(folder):
    """Return the folder of two tiny sites that can give clips."""
    clips = {"frames_per_video": 1, "clip": 4, "interval": 0.2, "layout": "sar_rarp50"}
    for number, name in enumerate("ab"):
        tiny_site(folder / "sites" / name, number, **clips)
    return folder / "sites"


def server_at(folder):
    return server_site(folder / "given", TINY_SCALE)


def test_synthetic_sites_give_clips_and_texts_that_have_vectors(tmp_path):
    files, held_out = synthetic_sites(tmp_path, TINY_SCALE, clip=(4, 0.2), held_out_layout="grasp")
    server = server_site(tmp_path, TINY_SCALE)
    counts = {name: len(samples(load_site(path, name=name), "train")) for name, path in files.items()}
    assert counts == {"site-1": 4, "site-2": 4, "site-3": 4, "site-4": 2}  # the last one is poor
    for number, path in enumerate([*files.values(), held_out, server]):
        site = load_site(path)
        spec = SampleSpec(frames=4, interval=0.2)
        if path != server:
            assert check_site(site, spec, required=("train", "validation", "test")) == []
        moves = any(len(set(sample.images)) > 1 for sample in samples(site, "train", spec))
        assert moves == (path != server)  # the server's are single images
        SiteText().vector(SiteFacts(text=site.text, site=number, sites=6), width=384)
    assert [name_of(load_site(path).classes) for path in (held_out, server)] == ["foreground", "parts"]
    assert len(samples(load_site(server), "train")) == 14


def test_the_servers_frames_are_rendered_and_count_for_the_rows_that_use_them(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "quick", TINY_SCALE)
    runs = compare.planned(parsed("--preset", "fedst-table4", "--out", str(tmp_path)), PRESETS["fedst-table4"])
    file = tmp_path / "sites" / "quick-clips" / "server" / "site.yaml"
    assert [bool(run.server) for run in runs] == [False] * 4 + [True] * 3
    assert {run.server for run in runs if run.server} == {str(file.resolve())}
    before = [run.name for run in runs]
    file.write_text(file.read_text() + "frame_interval: 2\n")
    assert [a == b for a, b in zip(before, (run.name for run in runs), strict=True)] == [True] * 4 + [False] * 3


def test_a_table_that_needs_the_servers_frames_is_refused_without_them(tmp_path):
    words = ["--sites", str(three(tmp_path)), "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=r"SERQ uses frames of the server's own, .* name their site\.yaml by --server"):
        compare.run(parsed("--preset", "fedst-table4", *words))
    with pytest.raises(ValueError, match="Local Train \\+ synthetic uses frames of the server's own"):
        compare.run(parsed("--preset", "fedst-figure7", *words))
    with pytest.raises(ValueError, match=r"nowhere/site\.yaml: no such file"):
        compare.run(parsed("--preset", "fedst-table4", *words, "--server", str(tmp_path / "nowhere/site.yaml")))
    assert not (tmp_path / "out").exists()
    given = parsed("--preset", "fedst-table4", *words, "--server", str(server_at(tmp_path).parent))
    assert sum(bool(run.server) for run in compare.planned(given, PRESETS["fedst-table4"])) == 3
    plain = compare.planned(parsed("--methods", "fedavg", *words), compare.chosen(parsed("--methods", "fedavg")))
    assert plain[0].server == ""


def test_a_mixing_row_writes_a_site_that_adds_the_servers_frames(site, tmp_path):
    server = server_at(tmp_path)
    run = run_of(site, Variant("A", "fedavg", data=DataChanges(server_frames=True)), server=str(server))
    (path,) = changed_sites(run, tmp_path / "run").values()
    mixed, plain = load_site(path, name="a"), load_site(site, name="a")
    assert path == str(tmp_path / "run" / "sites" / "a" / "site.yaml") and mixed.root == plain.root.resolve()
    assert len(samples(mixed, "train")) == len(samples(plain, "train")) + 14
    assert samples(mixed, "test") == samples(replace(plain, root=mixed.root), "test")
    with pytest.raises(FederationError, match=r"contains 'also_trains_on', but this row adds"):
        changed_sites(replace(run, sites={"a": path}), tmp_path / "again")
    server.write_text(yaml.safe_dump(yaml.safe_load(server.read_text()) | {"classes": "foreground"}))
    with pytest.raises(FederationError, match="cannot be read as 'parts'"):
        changed_sites(run, tmp_path / "run")


def test_without_the_servers_frames_the_methods_that_need_them_are_left_out(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = re.sub(r"\s", "", capsys.readouterr().out)  # lines break after hyphens
    assert all(name in text for name in FEDST)
    folder = str(three(tmp_path))
    words = ["--preset", "all", "--sites", folder]
    left = compare.chosen(parsed(*words))
    assert [v.method for v in left.variants] == [name for name in method_names() if name not in ("fedst", "surgfed")]
    assert left.remark == "Without FedST: set --server to a site.yaml with the server's frames"
    whole = compare.chosen(parsed(*words, "--server", str(tmp_path / "site.yaml")))
    assert [v.method for v in whole.variants] == [name for name in method_names() if name != "surgfed"]
    assert whole.remark == ""
    assert compare.chosen(parsed("--preset", "all")) == whole
    fedst = parsed("--methods", "fedst", "--sites", folder)
    with pytest.raises(ValueError, match="FedST uses frames of the server's own, and --sites has none"):
        compare.planned(fedst, compare.chosen(fedst))
