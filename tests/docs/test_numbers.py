"""Numbers that stand in more than one place are equal: in documents, cards, the records of weights and their headers.

`FACTS` names what is quoted. Each fact has a source, which is a record or a table, and every place that quotes it. A
place is a pattern with a group for each number; a number agrees with its source to the digits that it is written with.
"""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

from shared_components.core.calibration import calibration_of, certainty_head, certainty_rows, error_rows
from shared_components.core.method import method_names
from shared_components.core.shipped_weights import chosen_by, shipped_facts, shipped_weights
from shared_components.flare.deployment.job_files import described_jobs
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.checkpoints import load_metadata

ROOT = Path(__file__).resolve().parents[2]
GLOBS = ("*.md", "docs/**/*.md", "bundles/*.md", "bundles/*/docs/*.md", "nvflare_jobs/*/*.md", "evidence/*.md")
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for pattern in GLOBS for path in ROOT.glob(pattern))
SHIPPING = [name for name in bundle_names() if shipped_facts(name)]
DEMO, WEIGHTS, PVT = "docs/results/demo.md", "docs/results/weights.md", "bundles/pvt_fpn/docs/README.md"
SURGFED = "bundles/surgfed/docs/README.md"
OF_PVT, OF_FEDST = "docs/results/pvt_fpn.md", "docs/results/fedst.md"
COMPARISONS = [DEMO, OF_FEDST, "docs/results/methods.md", "docs/results/real-surgeries.md"]
ENDOVIT = "bundles/fl_endovit/docs/README.md"
ENDOVIT_JOB, ENDOVIT_RESULTS = "nvflare_jobs/fl_endovit/README.md", "docs/results/fl_endovit.md"
NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?)"
MADE = re.compile(r"<!-- begin of .*?<!-- end of \w+ -->", re.DOTALL)


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def numbers_in(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(NUMBER, text)]


class Row(NamedTuple):
    head: tuple[str, ...]
    cells: tuple[str, ...]


def tables_of(text: str) -> list[list[Row]]:
    """Return the tables of a text; a row is its cells without emphasis, and knows its table's head."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [tuple(cell.strip(" *\\") for cell in line.strip().strip("|").split("|")) for line in block.splitlines()]
        found += [[Row(rows[0], row) for row in rows[2:]]] if rows[2:] else []
    return found


def under(document: str, heading: str) -> str:
    """Return the text below a heading, to the next one of its level."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text_of(document), re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no heading {heading!r}"
    return found[2]


def cells(document: str, heading: str, *names: str) -> tuple[float, ...]:
    """Return the first number of all cells but the first, of the row that begins with names below a heading."""
    rows = [row for table in tables_of(under(document, heading)) for row in table]
    (found,) = [row.cells for row in rows if row.cells[: len(names)] == names][:1]
    return tuple(numbers_in(cell)[0] for cell in found[len(names) :] if numbers_in(cell))


def numbers_of_rows(document: str, heading: str, names: tuple[str, ...], columns: slice) -> tuple[float, ...]:
    """Return all numbers in some columns of the rows that begin with these names below a heading."""
    rows = {row.cells[0]: row.cells[columns] for table in tables_of(under(document, heading)) for row in table}
    return tuple(number for name in names for cell in rows[name] for number in numbers_in(cell))


@cache
def record(bundle: str) -> dict:
    return shipped_facts(bundle) or {}


def dice(bundle: str, where: str, classes: str = "", name: str = "") -> dict[str, float]:
    """Return the mean over some of a record's scores, by class."""
    some = [
        one for one in record(bundle)["scores"]
        if one["where"] == where and one["classes"] == (classes or one["classes"]) and one["name"].startswith(name)
    ]  # fmt: skip
    metric = record(bundle)["metric"]["name"]
    values = {key: [one[metric][key] for one in some if one[metric][key] is not None] for key in some[0][metric]}
    return {key: mean(found) for key, found in values.items() if found}


KINDS = ("named look", "unseen look", "unseen surgery look", "unseen microscope look", "unseen flexible look")
LABELS = ("11 named looks", "8 unseen random looks", "8 unseen operations, laparoscopic and robotic",
          "8 unseen eyes under a microscope", "8 unseen hollow organs")  # fmt: skip


def by_kind(bundle: str) -> tuple[float, ...]:
    return tuple(dice(bundle, kind)["mean"] for kind in KINDS)


def real(bundle: str) -> tuple[float, ...]:
    """Return the means over the four surgeries: parts, instrument."""
    names = ("shaft_manipulator", "foreground")
    return tuple(dice(bundle, "real", classes, "EndoVis 2015")["mean"] for classes in names)


def real_2017(bundle: str) -> tuple[float, ...]:
    parts, whole = (dice(bundle, "real", classes, "EndoVis 2017") for classes in ("parts", "foreground"))
    return parts["shaft"], parts["wrist"], parts["clasper"], whole["mean"]


def chosen(bundle: str, *candidates: str) -> tuple[float, ...]:
    return tuple(record(bundle)["choice"]["scores"][name]["mean"] for name in candidates)


def domain_rows(column: int) -> str:
    """Return the pattern for one column of numbers in the cards' tables by domain."""
    before = r"[^|]*\|" * column
    rows = [*map(re.escape, LABELS), r"EndoVis 2015, four surgeries[^|]*", r"EndoVis 2017[^|]*"]
    counts = (1, 1, 1, 1, 1, 2, 4)
    return ".*?".join(
        rf"\| {row} \|{before} {'[;,] '.join([NUMBER] * count)} \|" for row, count in zip(rows, counts, strict=True)
    )


class Fact(NamedTuple):
    source: Callable[[], tuple[float, ...]]
    places: tuple[tuple[str, str], ...]  # document, and a pattern with a group for each number


def n(template: str) -> str:
    """Return a pattern for a sentence; # stands for a number."""
    return re.escape(template).replace(r"\#", NUMBER)


STAGE = rf"\| [^|]+ \| [^|]*[a-z]{{3}}[^|]* \| {NUMBER} \| ?"  # a row of a training history, with its score
FACTS = {
    "scores of pvt_fpn's weights": Fact(
        lambda: (*by_kind("pvt_fpn"), *real("pvt_fpn"), *real_2017("pvt_fpn")),
        ((OF_PVT, domain_rows(1)), (OF_FEDST, domain_rows(2)))),
    "scores of pvt_fpn's weights on real frames": Fact(
        lambda: tuple(reversed(real("pvt_fpn"))),
        ((PVT, n("a mean Dice of # for the instrument (# for shaft and manipulator)")),)),
    "wrists in hollow organs": Fact(
        lambda: (dice("pvt_fpn", "unseen flexible look")["wrist"],),
        ((OF_PVT, n("hollow organs the Dice of wrists is # %")),)),
    "scores of FedST's weights": Fact(
        lambda: (*by_kind("fedst"), *real("fedst"), *real_2017("fedst")), ((OF_FEDST, domain_rows(1)),)),
    "the choice of pvt_fpn's weights": Fact(
        lambda: chosen("pvt_fpn", "774536d0", "24000 steps", "0.7 of 24000 steps + 0.3 of 774536d0", "7000 more"),
        ((OF_PVT, STAGE * 4),)),
    "the choice of FedST's weights": Fact(
        lambda: chosen("fedst", "4a540172", "frames", "clips"), ((OF_FEDST, STAGE * 3),)),
    "the demo": Fact(
        lambda: tuple(cells(DEMO, "Demo", row)[place] for place in range(3) for row in ("mean", "worst site")),
        (("README.md", n("starting model | # | # | | each hospital trains alone | # | # | | "
                         "hospitals train together | # | # |")),)),
    "real surgeries": Fact(
        lambda: tuple(cells("docs/results/real-surgeries.md", "PFedSIS and baselines", row)[place]
                      for row in ("As received", "Local Train", "FedAvg", "PFedSIS") for place in (0, -1)),
        (("README.md", n(
            "rendered scenes | # | # | | each hospital trains alone | # ± @ | # ± @ | | "
            "together, FedAvg | # ± @ | # ± @ | | together, PFedSIS (personalised) | **# ± @** | **# ± @** |"
        ).replace("@", r"[\d.]+")),)),
    "rounds and steps of FL-EndoViT's weights": Fact(
        lambda: (record("fl_endovit")["job"]["rounds"], record("fl_endovit")["steps"]),
        ((ENDOVIT_RESULTS, n("(# rounds of this job, # steps)")),)),
    "rounds of FL-EndoViT's weights": Fact(
        lambda: (record("fl_endovit")["job"]["rounds"],), ((ENDOVIT, n("9 sites together in # rounds")),)),
    "rounds of FL-EndoViT's job": Fact(
        lambda: (described_jobs(jobs_folder())["fl_endovit"]["rounds"],),
        ((ENDOVIT_JOB, n("| rounds, epochs, batch | #,")),)),
    "MSE of FL-EndoViT's weights": Fact(
        lambda: (dice("fl_endovit", "unseen look")["mean"],), ((ENDOVIT_RESULTS, n("| Shipped | # |")),)),
    "losses of FL-EndoViT's pre-training": Fact(
        lambda: numbers_of_rows(
            ENDOVIT_RESULTS, "Table 1: pre-training",
            ("Centralised", "FedAvg", "Adaptive FedSAM", "FedAvg, as released", "each frame's mean colour"),
            slice(2, 3)),
        ((ENDOVIT_JOB, n("|---:| | # ± # | # ± # | # ± # | # ± # | # |")),)),
    "averages of SurgFed's Table I": Fact(
        lambda: numbers_of_rows(
            "docs/results/surgfed.md", "Table I: methods",
            ("Local Train", "SurgFed", "FedRep", "MaT-FL", "FedHCA2", "FedAvg"), slice(1, 2)),
        (("nvflare_jobs/surgfed/README.md", n("|---:| | # ± # | -# ± # | -# ± # | -# ± # | -# ± # | -# ± # |")),)),
    "F1 of FedSurg": Fact(
        lambda: numbers_of_rows(
            "docs/results/fedsurg.md", "FedSurg results",
            ("FedAvg", "Each centre alone", "FedAvg, then each centre"), slice(1, 3)),
        (("nvflare_jobs/fedsurg/README.md", " ".join(
            n(f"{row} | # ± # | # ± # |")
            for row in ("unseen", "| Each centre alone", "| FedAvg, then each centre"))),)),
    "steps of SurgFed's stages": Fact(
        lambda: (record("surgfed")["before"][0]["steps"], 13_500),
        ((SURGFED, n("20,048 frames, # of # steps, stopped early")),)),
    "methods and jobs": Fact(
        lambda: (len(method_names()), len(described_jobs(jobs_folder()))),
        (("CHANGELOG.md", n("**Methods**: #, in # jobs")),)),
}  # fmt: skip


def agrees(written: str, value: float) -> bool:
    """Return whether a number, as it is written, is a value that was rounded, or a share in percent."""
    own = len(repr(value).partition(".")[2])
    slack = 0.5 * 10**-own if own <= 4 else 0  # of a source that is rounded itself: a table
    number, half = float(written.replace(",", "")), 0.5 * 10 ** -len(written.partition(".")[2]) + 1e-9
    return any(abs(number - value * unit) <= half + slack * unit for unit in (1, 100))


@pytest.mark.parametrize(("fact", "document", "pattern"), [(f, *place) for f in FACTS for place in FACTS[f].places])
def test_a_number_is_the_same_wherever_it_stands(fact, document, pattern):
    (found,) = re.findall(pattern, " ".join(text_of(document).split())) or [()]
    written, values = (found,) if isinstance(found, str) else found, FACTS[fact].source()
    assert written, f"{document} does not quote {fact} any more: {pattern}"
    assert len(written) == len(values)
    assert [w for w, value in zip(written, values, strict=True) if not agrees(w, value)] == [], f"{values}"


def test_numbers_agree_to_the_digits_that_they_are_written_with():
    assert agrees("0.74", 0.743) and agrees("74.3", 0.743) and agrees("0.79", 0.795) and agrees("13,524", 13524)
    assert not agrees("0.75", 0.743) and not agrees("50.7", 0.50649) and not agrees("4", 14)


def test_a_table_of_results_that_a_card_repeats_is_the_same_there():
    """A card may repeat some rows and some columns of a table of methods in docs/results, which are equal there."""
    tables = [table for name in COMPARISONS for table in tables_of(text_of(name))]
    known = [table for table in tables if table[0].head[0] in ("Method", "Synthetic frames", "site")]
    repeated = 0
    for document in (name for name in DOCUMENTS if not name.startswith("docs/results/")):
        for table in tables_of(MADE.sub("", text_of(document))):
            head = table[0].head
            same = [columns(one, head) for one in known if head[0] and set(head) <= set(one[0].head)]
            if not any(one[0].head == head for one in known):
                found = any({row.cells for row in table} <= set(rows) for rows in same)
            else:
                found = [row.cells for row in table] in same
            assert not same or found, f"{document}: a table differs from docs/results"
            repeated += bool(same)
    assert repeated >= 2


def columns(table: list[Row], head: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the cells of a table's rows below some headings."""
    places = [table[0].head.index(heading) for heading in head]
    return [tuple(row.cells[place] for place in places) for row in table]


@pytest.mark.parametrize("bundle", ["pvt_fpn", "fedst"])
def test_tables_of_a_calibration_are_the_same_in_the_results_of_its_weights(bundle):
    calibration = calibration_of(shipped_weights(bundle))
    assert calibration
    card, document = calibration.facts.card, f"docs/results/{bundle}.md"
    for heading, head, rows in (
        ("Warnings for unknown scenes", certainty_head(card), certainty_rows(card)),
        ("Calibration error", ("Frames of", "Frames", "Before", "After"), error_rows(card)),
    ):
        (table,) = tables_of(under(document, heading))
        assert table[0].head == head and [row.cells for row in table] == rows


@pytest.mark.parametrize("bundle", SHIPPING)
def test_the_header_of_shipped_weights_their_record_and_their_card_say_the_same(bundle):
    facts, header = record(bundle), load_metadata(shipped_weights(bundle))
    assert facts["sha256"] in text_of(f"bundles/{bundle}/docs/README.md")
    card = text_of(f"bundles/{shipped_weights(bundle).parents[1].name}/docs/README.md")  # bundles can share weights
    assert facts["header"] == header
    if "steps" in header:
        done, planned = map(int, header["steps"].split(" of "))
        assert (facts["steps"], sum(map(steps_of, facts["sizes"]))) == (done, planned)
    if "job" in facts:
        assert int(header["round"]) == facts["job"]["rounds"]
        assert f"in {facts['job']['rounds']} rounds" in card
        assert header["method"] == facts["job"]["method"]
    for stage in (facts, *facts.get("before", [])):
        planned = sum(map(steps_of, stage["sizes"]))
        assert stage["steps"] <= planned
        stopped = f"frames, {stage['steps']:,} of {planned:,} steps, stopped early"
        assert (stopped if stage["steps"] < planned else f"frames, {planned:,} steps") in card
        if "pretrain" in stage["command"]:
            assert re.findall(r"--size (\S+)", stage["command"]) == stage["sizes"]
    assert facts["sha256"] in card and header["height"] + " x " + header["width"] in card
    marked = set(re.findall(r"^\| ([^|*]+) \\\* \|", card, re.MULTILINE))
    chose = {name for name in record(bundle).get("choice", {}).get("by", "").split(", ") if name.startswith("EndoVis")}
    assert marked == chose == chosen_by(record(bundle))
    assert ("chose the weights among the candidates" in card) == bool(chose)


def steps_of(size: str) -> int:
    return int(size.rpartition(":")[2])


def test_a_document_names_the_weights_that_ship_or_says_that_they_are_older():
    """docs/results/weights.md lists all weights that documents name."""
    current = {record(name)["sha256"][:8] for name in SHIPPING}
    rows = [row.cells for table in tables_of(under(WEIGHTS, "Weights")) for row in table]
    assert {row[0] for row in rows if row[2] == "now"} <= current
    for document in DOCUMENTS:
        flat = " ".join(text_of(document).split())
        for found in re.finditer(r"\bweights(?: of \w+| before)?,? ([0-9a-f]{8})\b", flat):
            assert found[1] in {row[0] for row in rows}, f"{document}: {found[0]}"
            older = re.search(r"\b(older|before|then|earlier)\b", flat[max(0, found.start() - 60) : found.end()])
            assert found[1] in current or older, f"{document}: say that they are older: {found[0]}"


def test_every_commit_that_a_document_names_exists():
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no repository with its history")
    named = {}
    for document in DOCUMENTS:
        flat = " ".join(text_of(document).split())
        for listed in re.findall(r"\b[Cc]ommits? ((?:[0-9a-f]{7,40}(?:-dirty)?(?:, | and | to )?)+)", flat):
            named |= dict.fromkeys(re.findall(r"[0-9a-f]{7,40}", listed), document)
    del named["6e543bc"]  # of the released code of PFedSIS
    missing = {name: where for name, where in named.items() if git("cat-file", "-e", f"{name}^{{commit}}").returncode}
    assert len(named) > 30 and missing == {}
