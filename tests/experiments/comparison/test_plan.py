"""Presets against the papers' tables, names of runs, options of the command, and messages of the schedule."""

import io
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import yaml
from torch import nn

from shared_components.commands import _compare as compare
from shared_components.core.method import load_method, method_names
from shared_components.core.site_fingerprint import fingerprint
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison import names, plan, schedule
from shared_components.experiments.comparison.plan import SCALES, Run, Variant
from shared_components.experiments.comparison.presets import PRESETS, preset_named, with_arguments, with_network
from shared_components.experiments.comparison.run import REFUSED, TIMED, _frames_per_second
from shared_components.experiments.comparison.sites import own_sites, synthetic_sites
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.scenes.site import write_site
from tests.experiments.comparison.conftest import parsed, result


def test_presets_have_the_rows_of_the_papers_tables():
    for name in [*PRESETS, "all"]:
        assert all(load_method(row.method, **row.arguments) for row in preset_named(name).variants)
    rows = {name: [variant.label for variant in preset.variants] for name, preset in PRESETS.items()}
    assert rows["pfedsis-table1"] == ["Local Train", "FedAvg", "FedSeg", "FedRep*", "pFedLA*", "FedDP*", "PFedSIS*"]
    assert rows["pfedsis-table2"][-2:] == ["PFedSIS w/o SGE", "PFedSIS"] and len(rows["pfedsis-table2"]) == 7
    ticks = {name: [v.ticks for v in PRESETS[f"pfedsis-table{name}"].variants] for name in "34"}
    assert ticks["3"] == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)]
    assert ticks["4"] == [(0,) * 4, (1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (1,) * 4]
    methods = {variant.method for variant in PRESETS["fl-endovit-aggregation"].variants}
    assert methods == {"centralised", "fedsam", "fedavg", "fedmedian", "qfedavg", "fedavgm", "multi_krum", "fedadam"}
    assert [variant.method for variant in preset_named("all").variants] == [n for n in method_names() if n != "surgfed"]
    assert compare.presets.of_methods(["fedavg", "pfedsis"]).title == "Comparison of FedAvg, PFedSIS"
    assert re.fullmatch(r"Comparison of \d\d methods", preset_named("all").title)


def run_of(path, **changes):
    values = {"variant": Variant("FedAvg", "fedavg"), "seed": 1, "rounds": 2, "training": {}, "sites": {"a": str(path)}}
    return Run(**(values | changes))


def copied(site, folder):
    return Path(shutil.copytree(site.parent, folder)) / "site.yaml"


def test_other_settings_or_data_give_another_folder_and_another_place_does_not(site, tmp_path):
    name = run_of(site).name
    assert name.startswith("fedavg-seed-1-") and run_of(copied(site, tmp_path / "moved")).name == name
    changes = [
        {"rounds": 3}, {"training": {"iterations": 2}}, {"variant": Variant("FedAvg", "fedprox", {"mu": 1.0})},
        {"held_out": str(site)}, {"seed": 2}, {"threads": 2},
    ]  # fmt: skip
    assert len({name} | {run_of(site, **change).name for change in changes}) == 7
    assert Run.from_json(run_of(site).to_json()) == run_of(site)
    other = copied(site, tmp_path / "other")
    first = samples(load_site(other), "train")[0].images[-1]
    cv2.imwrite(str(first), cv2.imread(str(first)) // 2)
    described = copied(site, tmp_path / "described")
    described.write_text(described.read_text().replace("synthetic:", "a"))
    assert len({run_of(path).name for path in (site, other, described)}) == 3


def test_the_weights_that_a_run_begins_from_are_part_of_its_name_and_their_place_is_not(site, tmp_path):
    runs = [run_of(site)]
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
        runs.append(run_of(site, start="file", start_file=str(tmp_path / name)))
    random, a, b, c = (run.name for run in runs)
    assert a == b and len({random, a, c}) == 3
    job = runs[1].job()
    assert job["training"]["start"] == runs[1].settings().start == "file" and str(tmp_path) not in str(job)
    assert runs[0].settings().start == "random"


def test_a_runs_folder_depends_on_the_targets_of_each_sites_task(tmp_path):
    depth_site = write_site(
        tmp_path / "depth", look="rose", seed=1, layout="scared", task="depth", frames_per_video=1,
        videos={"train": 1, "test": 1}, height=64, width=96,
    )  # fmt: skip
    before = run_of(depth_site).name
    [depth] = samples(load_site(depth_site), "train", SampleSpec(targets=("depth",)))[0].targets["depth"]
    cv2.imwrite(str(depth), np.random.default_rng(0).integers(0, 60000, (64, 96)).astype(np.uint16))
    os.utime(depth_site, (1, 1))  # a digest is kept as long as the description is not touched
    assert run_of(depth_site).name != before
    other = run_of(depth_site, variant=Variant("PFedSIS", "pfedsis"))  # cannot learn depth: a dash beside others
    assert other.name.startswith("pfedsis-seed-1-")


def test_a_method_has_one_folder_in_all_tables_that_write_it_alike(site):
    rows = [v for name in PRESETS for v in PRESETS[name].variants if v.label.strip("*") == "FedRep"]
    for bundle, tables in (("", 3), ("fedst", 7)):
        alike = [row for row in rows if row.bundle == bundle]
        assert len(alike) == tables and len({run_of(site, variant=row).name for row in alike}) == 1


def test_arguments_are_added_to_the_rows_of_their_method():
    preset = with_arguments(PRESETS["pfedsis-table2"], compare.arguments(["pfedsis.seed=7", "pfedsis.ape=no"]))
    kept = with_arguments(PRESETS["pfedsis-table2"], {"pfedsis": {"sge": True, "ape": False}})
    assert [v.arguments["sge"] for v in kept.variants[-2:]] == [False, True]  # what a row is about stays
    without, whole = (v.arguments for v in preset.variants[-2:])
    assert (without, whole) == ({"sge": False, "seed": 7, "ape": False}, {"seed": 7, "ape": False})
    assert preset.variants[0].arguments == {}
    with pytest.raises(ValueError, match="'krum', which is not compared"):
        with_arguments(preset, {"krum": {"byzantine": 1}})
    with pytest.raises(ValueError, match=r"sets qfedavg\.q, but each row of qfedavg sets it too; .*--methods"):
        with_arguments(PRESETS["fl-endovit-aggregation"], {"qfedavg": {"q": 1.0}})
    for text in ("q=2", "qfedavg.q", ".q=2", "qfedavg.=2"):
        with pytest.raises(ValueError, match="--argument is"):
            compare.arguments([text])


@pytest.mark.parametrize("words, message", [
    (["--size", "33x64"], "the size is 33x64, but PvtFpn takes multiples of 32; use 32x64"),
    (["--size", "0x64"], "height is 0; it is a whole number, at least 1"), (["--size", "64"], "--size is '64'"),
    (["--rounds", "0"], "rounds is 0; it is a whole number, at least 1"), (["--iterations", "0"], "iterations is 0"),
    (["--batch-size", "-1"], "batch_size is -1"),
    (["--learning-rate", "nan"], "learning_rate is nan; it is a number, at least 0"),
    (["--threads", "0"], "threads is 0"), (["--jobs", "0"], "--jobs is 0"), (["--seeds", "1,1"], "each once"),
    (["--held-out", "site-1"], "--held-out names one of the sites in --sites"),
    (["--argument", "fedavgm.momentun=1"], "momentun"),
    (["--argument", "fedavgm.momentum=["], "--argument fedavgm.momentum: '[' is not valid YAML ("),
    (["--argument", "fedavgm.momentum=&a [*a]"], "--argument fedavgm.momentum: '&a [*a]' refers to itself"),
    (["--argument", "fedavgm.momentum=.nan"], "momentum is nan; it is a number"),
    (["--argument", "fedavgm.momentum="], "momentum is None; it is a number"),
    (["--argument", "fedavgm.momentum=0.5", "--argument", "fedavgm.momentum=0.9"], "fedavgm.momentum twice"),
    (["--learning-rate", "0"], "--learning-rate is 0, which trains nothing"),
    (["--seeds", "1000000000"], "the count of --seeds is 1000000000; it is a whole number, at least 1 and at most"),
    (["--seeds", "1,99999999999999999999"], "a seed of --seeds is 99999999999999999999"),
    (["--methods", ""], "method '' does not exist"),
    (["--methods", "fedavg,fedsgd"], "'fedsgd' does not exist"),
    (["--methods", "surgfed", "--network", "architecture=huge"], "architecture 'huge' is unknown; use one of cpu"),
    (["--bundle", "pvt"], "bundle 'pvt' does not exist; there are fedst"),
    (["--preset", "fl-endovit-table5", "--bundle", "pvt_fpn"], "but each row names its bundle; compare"),
    (["--network", "appearance_head"], "--network is 'appearance_head'; give an argument of the network such as"),
    (["--network", "=true"], "--network is '=true'; give an argument"),
    (["--network", "depth=["], "--network depth: '[' is not valid YAML ("),
    (["--network", "depth=4", "--network", "depth=5"], "--network gives depth twice; keep one of them"),
    (["--network", "depth=4"], "network: unknown argument 'depth'; PvtFpn takes "),
    (["--network", "appearance_head=7"], "network: appearance_head is 7; it is true or false"),
    (["--network", "appearance_head=.nan"], "network: appearance_head is nan"),
    (["--preset", "table1"], f"'table1' does not exist; use one of {', '.join([*PRESETS, 'all'])}"),
    (["--start", "/nowhere/b0.pth"], "checkpoint /nowhere/b0.pth does not exist"),
])  # fmt: skip
def test_impossible_options_are_refused_before_anything_is_rendered(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(compare.sites, "write_site", lambda *_, **__: pytest.fail("a site was rendered"))
    chosen = [] if words[0] in ("--methods", "--preset") else ["--methods", "fedavg,fedavgm"]
    with pytest.raises(ValueError, match=re.escape(message)):
        compare.run(parsed(*chosen, *words, "--out", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_bundle_network_and_optimizer_reach_every_row_and_its_name(planned):
    words = ("--methods", "fedavg,local", "--start", "random", "--scale", "small")
    _, plain = planned(*words)
    options = ["--bundle", "surgfed", "--network", "architecture=cpu_large", "--network", "size=96"]
    preset, changed = planned(*words, *options, "--optimizer", "sgd")
    for run in changed:
        bundle = run.open_bundle()
        assert (bundle.name, bundle.network["architecture"], bundle.network["size"]) == ("surgfed", "cpu_large", 96)
        assert run.job()["network"] == {"architecture": "cpu_large", "size": 96}
        assert run.settings().optimizer == "sgd"
    assert preset.remark == "Bundle: surgfed. Network: architecture = cpu_large, size = 96"
    assert {run.name for run in plain}.isdisjoint(run.name for run in changed)
    assert {run.settings().optimizer for run in plain} == {"adamw"}


def test_an_argument_of_the_network_takes_precedence_over_a_scale_and_not_over_a_row():
    table = PRESETS["surgfed-table2"]
    given = with_network(table, {"architecture": "tiny", "text": "released"})
    rows = {row.label: row.network for row in plan.at_scale(given, plan.scale_of("paper", given)).variants}
    assert {network["architecture"] for network in rows.values()} == {"tiny"}
    assert {network["size"] for network in rows.values()} == {512}
    assert (rows["SurgFed"]["text"], rows["SurgFed w/o LCS"]["text"]) == ("released", "none")
    other = with_network(PRESETS["fedsurg"], {"class": "BasicUNet", "spatial_dims": 2})
    for row in plan.at_scale(other, plan.scale_of("paper", other)).variants:
        assert {"class", "spatial_dims"} <= set(row.network) and "architecture" not in row.network
        assert row.after is None or row.after.network["class"] == "BasicUNet"
    rows = tuple(row for row in table.variants if row.label == "SurgFed w/o LCS")
    with pytest.raises(ValueError, match="--network sets text, but each row sets it too; compare --methods"):
        with_network(replace(table, variants=rows), {"text": "prompt"})


def test_the_name_of_a_job_is_a_row_with_what_the_job_runs():
    preset = compare.chosen(parsed("--methods", "fedavg,multi_krum,fl_endovit,fedsurg"))
    jobs = yaml.safe_load((jobs_folder() / "jobs.yaml").read_text())["jobs"]
    method, robust, pretraining, grading = preset.variants
    assert (method.label, method.bundle, robust.arguments) == ("FedAvg", "", {})  # a method's name is the method's
    assert (pretraining.label, pretraining.method, pretraining.bundle) == ("fl_endovit", "fedsam", "fl_endovit")
    assert pretraining.arguments == jobs["fl_endovit"]["arguments"] != {}
    assert (grading.method, grading.bundle) == ("fedavg", "fl_endovit_clips")
    assert grading.tasks == jobs["fedsurg"]["tasks"] != {}
    assert preset.title == "Comparison of FedAvg, Multi-Krum, fl_endovit, fedsurg"


def test_the_command_line_overrides_a_scale_and_seeds_are_a_count_or_a_list(tmp_path):
    args = parsed("--scale", "quick", "--seeds", "2", "--rounds", "9", "--size", "32x64", "--out", str(tmp_path))
    runs = compare.planned(args, preset_named("pfedsis-table1"))
    assert len(runs) == 14 and [run.seed for run in runs] == [1] * 7 + [2] * 7
    assert runs[0].rounds == 9 and runs[0].training["height"] == 32 and runs[0].training["iterations"] == 12
    assert list(runs[0].sites) == ["site-1", "site-2", "site-3"] and runs[0].held_out.endswith("held-out/site.yaml")
    assert list(compare.seeds("3")) == [1, 2, 3] and compare.seeds("7,9") == [7, 9] and compare.seeds("7,") == [7]
    for text in ("0", "", "a", "-1", "1,b"):
        with pytest.raises(ValueError, match="--seeds"):
            compare.seeds(text)


def test_synthetic_sites_differ_in_look_and_the_last_is_poor(tmp_path):
    files, held_out = synthetic_sites(tmp_path, SCALES["quick"])
    counts = {name: len(samples(load_site(path, name=name), "train")) for name, path in files.items()}
    assert counts == {"site-1": 8, "site-2": 8, "site-3": 4}
    assert len({yaml.safe_load(path.read_text())["text"] for path in [*files.values(), held_out]}) == 4
    before = held_out.stat().st_mtime_ns
    assert synthetic_sites(tmp_path, SCALES["quick"]) == (files, held_out)
    assert held_out.stat().st_mtime_ns == before


def test_own_sites_may_hold_one_out(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.yaml").write_text("")
    files, held_out = own_sites(tmp_path, "b")
    assert list(files) == ["a"] and held_out == tmp_path / "b" / "site.yaml"
    for path in (tmp_path / "b", tmp_path / "b" / "site.yaml", tmp_path / "a" / ".." / "b"):
        assert own_sites(tmp_path, str(path)) == (files, held_out)
    with pytest.raises(ValueError, match=r"no site 'c', only a, b"):
        own_sites(tmp_path, "c")
    with pytest.raises(ValueError, match=r"contains no <site>/site\.yaml"):
        own_sites(tmp_path / "a", "")
    (tmp_path / "b").rename(tmp_path / "server")
    with pytest.raises(ValueError, match="the name 'server' is reserved"):
        own_sites(tmp_path, "")


def test_a_sites_own_text_vectors_and_encoder_are_part_of_what_it_is(site, tmp_path):
    path = copied(site, tmp_path / "a")
    folder, plain, seen = path.parent, path.read_text(), []
    for number, (size, added) in enumerate([(0, ""), (0, "v"), (9, "v"), (9, "ve"), (10, "ve")]):
        (folder / "own.safetensors").write_bytes(bytes(size))
        (folder / "clip" / "inside").mkdir(parents=True, exist_ok=True)
        (folder / "clip" / "inside" / "weights").write_bytes(bytes(size))
        lines = {"v": "text_vectors: own.safetensors\n", "e": "text_encoder: clip\n"}
        path.write_text(plain + "".join(lines[letter] for letter in added))
        os.utime(path, ns=(number + 1, number + 1))
        seen.append(fingerprint(str(path), "pvt_fpn"))
    assert len(set(seen)) == 5


def test_a_refusal_is_its_sentence_a_crash_its_last_line_and_a_silent_end_its_status(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "finished", lambda run, root: None)
    monkeypatch.setattr(schedule.Run, "name", "fedavg-seed-1")

    def ended(status, log, *, earlier=""):
        path, lines, reasons = tmp_path / "log.txt", [], {}
        path.write_text(earlier + log)
        run, process = result("FedAvg", 1, None).run, SimpleNamespace(returncode=status)
        one = schedule.Working(run, process, path, len(earlier), 0.0, io.StringIO())
        schedule._close(one, tmp_path, reasons, lines.append, "3 to go")
        return lines[0], reasons["fedavg-seed-1"]

    line, reason = ended(REFUSED, "round 1\nrefused: krum needs 3 sites\n")
    assert reason == "krum needs 3 sites" and line == f"FedAvg, seed 1: refused: {reason}; 3 to go"
    line, reason = ended(1, "Traceback\nIndexError: 7\n")
    assert reason == f"IndexError: 7 ({tmp_path / 'log.txt'})" and "FAILED" in line
    assert ended(-9, "", earlier="round 1 of 2\n")[1].startswith("the process ended with status -9 and no message")


def test_memory_and_cores_limit_what_runs_side_by_side_and_the_time_left_follows_their_pace(site, monkeypatch):
    monkeypatch.setattr(schedule.machine, "cores", lambda: 16)
    monkeypatch.setattr(schedule.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(schedule, "_free_gigabytes", lambda: 24.0)
    for threads, count in ((1, 16), (4, 4)):
        assert schedule.side_by_side(run_of(site, training={"height": 64, "width": 96}, threads=threads)) == count
    assert schedule.side_by_side(run_of(site)) == 2  # 8 x 512 x 640 is 2.6 megapixels
    monkeypatch.setattr(schedule, "_free_gigabytes", lambda: 0.1)
    assert schedule.side_by_side(run_of(site)) == 1
    assert schedule._time_left(4, [120.0], 2) == "4 to go, about 4 min"
    assert schedule._time_left(0, [120.0], 2) == "that was the last"


class Remembering(nn.Module):
    """Adds to a frame what it remembers, and keeps the shapes that it was given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen = []

    def forward(self, image):
        self.seen.append(tuple(image.shape))
        return image

    def begin_stream(self, stride, padding):
        return 0

    def remember(self, image, memory):
        self.seen.append((memory, *image.shape))
        return image + self.weight, memory + 1


def test_a_network_that_remembers_is_timed_frame_by_frame_and_another_by_whole_samples():
    network = Remembering()
    assert _frames_per_second(network, 4, 32, 64) > 0
    assert network.seen == [(number, 1, 3, 32, 64) for number in range(4 + 1 + TIMED)]
    for frames, shape in ((1, (1, 3, 32, 64)), (4, (1, 4, 3, 32, 64))):
        network = nn.Sequential(Remembering())
        assert _frames_per_second(network, frames, 32, 64) > 0
        assert network[0].seen == [shape] * (1 + TIMED)


def test_the_names_in_the_help_are_those_of_all_presets_and_scales():
    """`names` repeats them, because the presets need PyTorch."""
    assert tuple(PRESETS) == names.PRESETS and tuple(SCALES) == names.SCALES
