"""The page: whole, self-contained, escaped, and with the records' numbers."""

import argparse
import json
import re
from html.parser import HTMLParser

import pytest

from shared_components.commands import report as command
from shared_components.reporting.records import RecordError, load_run
from shared_components.reporting.report import build_report
from tests.reporting.conftest import add_line, change_info, write_run

pytestmark = pytest.mark.slow

VOID = {"meta", "img", "br", "hr", "link", "input", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    """Tags, attributes and texts of a page; tags that do not close in order raise."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.text = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.text.append(data.strip())


def page_of(run, **options):
    text = build_report(run, run / "report" / "index.html", **options).read_text(encoding="utf-8")
    return text, Page(text)


@pytest.mark.parametrize("options", [
    {}, {"mixing": False}, {"sites": ("only",)}, {"done": 3}, {"done": 0}, {"overlays": False},
    {"sites": tuple(f"University Hospital of Somewhere, theatre {i}" for i in range(20)), "rounds": 2},
], ids=["pfedsis", "fedavg", "one site", "unfinished", "not begun", "no overlays", "twenty sites"])  # fmt: skip
def test_the_page_is_whole_and_loads_nothing(make_run, options):
    text, page = page_of(make_run(**options))
    assert not re.search(r"\b(?i:nan)\b|https?://|//[a-z]|@import|url\(", re.sub(r"base64,[^\"]+", "", text))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed"}
    sources = [attributes["src"] for _, attributes in page.tags if "src" in attributes]
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the folder and the page of a run that no test changes."""
    folder = write_run(tmp_path_factory.mktemp("plain") / "run")
    return folder, page_of(folder)[1]


def test_numbers_on_the_page_are_those_of_the_records(plain):
    folder, page = plain
    run = load_run(folder)
    for site in run.sites:
        for metric, digits in (("dice", 3), ("iou", 3), ("assd", 2), ("hd95", 2), ("hd95_monai", 2)):
            assert f"{run.finals[site][metric]['shaft']:.{digits}f}" in page.text
    weight = run.aggregations[7]["mixing"]["site-2"]["head_personal"]["site-3"]
    assert f"site-2 receives site-3 with weight {weight:.4f}" in page.text
    assert f"site-1, after 4 rounds: {run.rows['site-1'][4]['metrics']['dice']['mean']:.4f}" in page.text


def test_what_identifies_the_run_is_on_top_and_plain_averaging_is_called_so(plain):
    _, page = plain
    told = {name: page.text[page.text.index(name) + 1] for name in ("commit", "seed", "start")}
    assert told == {"commit": "10cd611", "seed": "7", "start": "rendered (1f0c22ab)"}
    assert page.text[1:3] == ["PFedSIS: 3 sites, 8 rounds", "Every site gets a model of its own."]
    assert {"Xu et al., IEEE TBME 2025", "2 x Intel Xeon 2.1 GHz, 8 GiB, no GPU"} <= set(page.text)
    assert any("sensitivity weighting" in part and "practically plain averaging" in part for part in page.text)


def test_every_site_shows_its_best_typical_and_worst_frame_with_their_own_scores(plain):
    folder, page = plain
    pictures = [attributes.get("alt") or "" for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 3 * 3 * 4
    assert pictures[4:7] == [f"site-1, video_1, frame 0: {name}" for name in ("frame", "truth", "prediction")]
    assert pictures[7].startswith("site-1, video_1, frame 0: errors, ")
    titles = [text for text in page.text if text.endswith("of 12 validation frames")]
    assert titles[:3] == [f"{rank} of 12 validation frames" for rank in ("Worst", "Best", "Typical")]
    record = json.loads((folder / "site-1" / "overlays" / "validation-0002-video_1-10.json").read_text())
    at = page.text.index("Worst of 12 validation frames")
    assert page.text[at + 1 : at + 3] == [f"Dice {record['scores']['dice']['mean']:.3f}", "site-1, video_1, frame 10"]
    assert page.text[at + 3 : at + 5] == ["shaft", f"{record['scores']['dice']['shaft']:.3f}"]
    assert {"missed", "false", "wrong class"} <= set(page.text)


def test_of_many_sites_each_shows_its_worst_frame(make_run):
    _, page = page_of(make_run(sites=tuple("abcdefg"), rounds=1))
    assert sum(tag == "img" for tag, _ in page.tags) == 7 * 4
    assert page.text.count("Worst of 12 validation frames") == 7
    assert any("the worst of every site" in text for text in page.text)


def test_depth_has_a_scale_beside_its_pictures(make_run):
    text, page = page_of(make_run(sites=("a", "b"), depth=("b",)))
    assert page.text.count("unknown: not compared") == 3
    assert text.count("linear-gradient(to right, #") == 3 * 3
    assert "RMSE 6.00 mm" in page.text


def test_unreadable_pictures_are_named_and_broken_records_of_pictures_refused(make_run):
    folder, panel = make_run(), {"name": "x", "note": "", "legend": [], "scale": None}
    (folder / "site-1" / "overlays" / "validation-0000-video_1-0.png").write_bytes(b"not a picture")
    assert "validation-0000-video_1-0.png cannot be read." in page_of(folder)[1].text
    file = folder / "site-2" / "overlays" / "validation-0001-video_1-5.json"
    record = json.loads(file.read_text())
    for broken in (
        {"panels": [{**panel, "box": [0, 0, 9999, 10]}]}, {"panels": [{**panel, "box": [-5, 0, 10, 10]}]},
        {"legend": [{"name": "shaft", "colour": "red; background: url(x)"}]},
        {"of": "many"}, {"scores": None}, {"panels": None},
    ):  # fmt: skip
        file.write_text(json.dumps({**record, **broken}))
        with pytest.raises(RecordError, match=r"validation-0001-video_1-5\.json: is not a picture's record"):
            page_of(folder)


def test_sections_without_content_are_left_out(make_run):
    def anchors(**options):
        _, page = page_of(make_run(str(len(options)), **options))
        sections = [a["id"] or "" for tag, a in page.tags if tag == "section"]
        assert [a["href"] for tag, a in page.tags if tag == "a"] == [f"#{section}" for section in sections]
        return sections

    assert anchors() == ["result", "pictures", "summary", "validation", "mixing", "costs", "losses", "settings"]
    assert "mixing" not in anchors(mixing=False)


def test_test_scores_stand_apart_from_validation(make_run):
    folder = make_run()
    text, _ = page_of(folder, evaluations={"site-1": {"dice": {"shaft": 0.12345, "mean": 0.12345}, "split": "test"}})
    result, others = text.split('<section id="result">')[1].split('<section id="pictures">')
    assert "Dice on the test frames of site-1: 0.123." in result
    assert "0.123</td>" in result and "0.123</td>" not in others
    assert "no scores on held-out test frames" in page_of(folder)[0]


def test_the_result_of_models_side_by_side_is_the_first_thing_on_the_page(make_run):
    folder = make_run()
    own = {site: {"dice": {"mean": 0.5}} for site in load_run(folder).sites}
    run = load_run(folder, evaluations=own, compared={"as received": own, "local": own, "federated": own})
    text = build_report(run, folder / "index.html").read_text(encoding="utf-8")
    before, after = text.split('<section id="pictures">')
    means = "as received 0.500, local 0.500, federated 0.500. Worst site: as received 0.500 (site-1), "
    assert "<section" not in before.split("<main>")[1].partition(means)[0].partition("<section")[2]
    caption = "as received | local | federated"
    assert caption in before.split("<main>")[1] and caption not in after


def test_the_axis_of_scores_ends_at_the_last_round(make_run):
    text, _ = page_of(make_run(rounds=4))
    charts = re.findall(r'<svg class="chart[^>]*aria-label="(Dice|segmentation loss)[^>]*>(.*?)</svg>', text)
    ticks = {name: re.findall(r'text-anchor="middle" class="label">(\d+)<', body) for name, body in charts}
    assert ticks == {"Dice": ["0", "1", "2", "3", "4"], "segmentation loss": ["1", "2", "3", "4"]}
    assert "after 4 rounds: " in text and "round 5" not in text


def test_names_and_reasons_are_escaped(make_run):
    evil = "<script>alert('x')</script>"
    folder = make_run(sites=(evil, "b"))
    add_line(folder, kind="aggregation", round=8, rejected=[{"site": evil, "reason": '"><img src=x onerror=y>'}])
    text, page = page_of(folder)
    assert "<script" not in text and evil in page.text
    assert all(attributes.get("src") != "x" for _, attributes in page.tags)


def test_the_state_and_the_job_of_an_unfinished_run_are_on_top(make_run):
    folder = make_run(done=3)
    change_info(folder, said=None)  # as earlier versions wrote it
    text = page_of(folder)[1].text
    assert "Unfinished." in text and text[1] == "pfedsis: 3 sites, 8 rounds"
    job = {"name": "three-hospitals", "training": {"batch_size": 4}}
    change_info(folder, error="site-2 has no training data", job=job, commit="")
    text = page_of(folder)[1].text
    assert "Failed." in text and any("site-2 has no training data" in part for part in text)
    assert text[text.index("job") + 1] == "three-hospitals"
    assert text[text.index("job.training.batch_size") + 1] == "4"


def test_an_incomplete_last_line_is_skipped_a_bad_line_named_and_the_later_of_equal_lines_counts(make_run):
    folder = make_run(done=2)
    file = folder / "server" / "rounds.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"kind": "site", "rou')
    assert max(load_run(folder).rows["site-1"]) == 1
    file.write_text("{broken\n" + whole)
    with pytest.raises(RecordError, match=r"rounds\.jsonl: record 1 is not JSON"):
        load_run(folder)
    file.write_text(whole)
    add_line(folder, kind="site", round=1, site="site-1", metrics={"dice": {"mean": 0.77}})
    assert load_run(folder).rows["site-1"][1]["metrics"]["dice"]["mean"] == 0.77
    # final scores reach the page from a server without the sites' folders
    add_line(folder, kind="final", site="site-2", dice={"shaft": 0.4321, "mean": 0.4321}, hd95={"shaft": 98.76})
    assert {"0.432", "98.76"} <= set(page_of(folder)[1].text)


def run_command(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([*map(str, words)]))


def test_the_command_prints_table_and_path(make_run, tmp_path, capsys):
    out = tmp_path / "ws" / "index.html"
    (tmp_path / "evaluations" / "site-1").mkdir(parents=True)
    (tmp_path / "evaluations" / "site-1" / "metrics.json").write_text('{"dice": {"shaft": 0.5, "mean": 0.5}}')
    assert run_command(make_run(), "--out", out, "--evaluations", tmp_path / "evaluations") == 0
    printed = capsys.readouterr().out
    assert "worst site" in printed and "Scores on the test split" in printed
    assert printed.splitlines()[-1] == f"report: {out}" and out.is_file()


@pytest.mark.parametrize("theirs", ["<html>mine</html>", ""])
def test_the_command_replaces_its_own_page_and_no_other(make_run, tmp_path, theirs):
    folder, out = make_run(), tmp_path / "index.html"
    assert run_command(folder, "--out", out) == 0 and run_command(folder, "--out", out) == 0
    page = out.read_text()
    other = folder.rename(folder.with_name("another"))
    with pytest.raises(RecordError, match=rf"is the report of .*/{folder.name}; give another --out"):
        run_command(other, "--out", out)
    assert out.read_text() == page
    out.write_text(theirs)
    with pytest.raises(RecordError, match="is not a report of surgfl; give another --out"):
        run_command(other, "--out", out)
    assert out.read_text() == theirs


def test_the_command_names_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RecordError, match=r"run\.json: cannot be read"):
        run_command(tmp_path, "--out", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()
