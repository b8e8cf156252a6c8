"""The report's row on noise: from the sites' own folders where they are here, from the server's record elsewhere."""

import json

import pytest

from shared_components.federation.privacy.noisy_updates import RECORD as WRITTEN
from shared_components.reporting.costs import PRIVACY_RECORD, privacy_table
from shared_components.reporting.records import load_run
from shared_components.reporting.report import build_report
from tests.reporting.conftest import change_info, write_run

SAID = {"clip": 0.5, "noise_multiplier": 1.25, "delta": 1e-5, "unit": "all data of a site"}


@pytest.fixture
def noisy(tmp_path):
    """Return a run of which the first site's folder says what it has spent, and those of the others are elsewhere."""
    folder = write_run(tmp_path / "run", rounds=2)
    change_info(folder, privacy=SAID)
    records = folder / "server" / "rounds.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "aggregation":
            line["epsilon"] = 10.0 * (line["round"] + 1)
        elif line["kind"] == "site":
            line["noisy"] = line["round"] < 2
            for key in ("loss", "metrics", "samples", "seconds", "memory_mb"):
                line.pop(key, None)
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"updates": 4, "clipped": 3, "epsilon": 31.4159, "epsilon_of_all_jobs": 99.0}
    (folder / "site-1" / PRIVACY_RECORD).write_text(json.dumps(own))
    return folder


def test_what_the_site_writes_is_what_is_read():
    assert WRITTEN == PRIVACY_RECORD


def test_a_row_per_site_says_what_was_promised_and_spent(noisy):
    first, second, third = privacy_table(load_run(noisy)).rows
    said = ("all data of a site", "0.5", "1.25", "1e-05")
    assert first == ("site-1", *said, "31.42", "4", "75 %", "99")
    assert second == ("site-2", *said, "20", "–", "–", "–") and third[0] == "site-3"


def test_the_page_has_the_section_and_one_without_noise_has_not(noisy, tmp_path):
    page = build_report(noisy, tmp_path / "report.html").read_text()
    assert 'href="#privacy"' in page and "31.42" in page and "Privacy by site" in page
    assert "Dice stays at the sites" in page and "reported a first" not in page
    plain = write_run(tmp_path / "plain", rounds=2)
    page = build_report(plain, tmp_path / "plain.html").read_text()
    assert "privacy" not in page.lower()


def test_a_run_that_has_just_begun_has_dashes(noisy):
    (noisy / "server" / "rounds.jsonl").write_text("")
    assert privacy_table(load_run(noisy)).rows[1][5:] == ("–", "–", "–", "–")
