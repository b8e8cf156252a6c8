"""The page of `surgfl watch --serve`: its content, its server, and a real browser."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.commands._watch_server import PageServer, RunPage, parse_address
from shared_components.commands.watch import look_at
from shared_components.federation.runs import run_cleanup
from shared_components.reporting.records import load_run
from shared_components.reporting.watch_page import rounds_table, watch_page
from tests.browser import NARROW, WIDE
from tests.reporting.conftest import add_line, aggregation_line, change_info, site_line

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def folder(make_run, tmp_path, monkeypatch):
    """Return a run that does its fourth of eight rounds; site-2 missed the second round."""
    folder = tmp_path / "ws-state" / "pfedsis" / "20260101-100000"
    folder.parent.mkdir(parents=True)
    make_run(done=3, overlays=False, mixing=False).rename(folder)
    change_rounds(folder)
    monkeypatch.setattr(run_cleanup, "is_locked", lambda folder: True)
    return folder


def change_rounds(folder):
    file = folder / "server" / "rounds.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    lines = [x for x in lines if (x.get("site"), x["round"]) != ("site-2", 1)]
    for line in lines:
        if line["kind"] == "aggregation":
            line["seconds_wall"] = 60.0 + line["round"]
            line["rejected"] = [{"site": "site-2", "reason": EVIL}] * (line["round"] == 1)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_of(folder):
    return RunPage("pfedsis/x", lambda: look_at(run_cleanup.read_run(folder)))


def one_more_round(folder, r=3):
    import numpy as np

    generator = np.random.default_rng(r)
    for i in range(3):
        add_line(folder, **site_line(generator, r, i, f"site-{i + 1}", last=False, mixed=False, depth=False))
    line = aggregation_line(generator, r, ("site-1", "site-2", "site-3"), mixing=False)
    add_line(folder, **{**line, "seconds_wall": 59.0})


@contextmanager
def served(page, host="127.0.0.1"):
    with PageServer(host, 0, page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def test_the_page_shows_rounds_sites_and_losses_and_escapes_every_text(folder):
    page = watch_page(look_at(run_cleanup.read_run(folder)))
    assert "3 of 8 rounds done, about 5 min left." in page and '<progress max="8" value="3"' in page
    assert EVIL not in page and "missing in round 2: site-2, &lt;script&gt;" in page
    assert "Training loss" in page and page.count("<script>") == 1


def test_the_table_of_rounds_counts_updates_and_means(folder):
    run = load_run(folder)
    table = rounds_table(run)
    assert [row[:4] for row in table.rows] == [
        ("3", "3", "0", "62.0"), ("2", "2", "1", "61.0"), ("1", "3", "0", "60.0"),
    ]  # fmt: skip
    scores = [run.rows[site][1]["metrics"]["dice"]["mean"] for site in ("site-1", "site-3")]
    assert table.rows[1][4] == f"{sum(scores) / 2:.3f}"


def test_an_answer_that_was_rejected_is_no_update(folder):
    one_more_round(folder)
    lines = (folder / "server" / "rounds.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"rejected": [{"site": "site-1", "reason": "NaN"}]}
    (folder / "server" / "rounds.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert rounds_table(load_run(folder)).rows[0][1:3] == ("2", "1")


def test_a_run_without_a_round_and_a_damaged_run_have_a_page(folder, capsys):
    page = page_of(folder)
    with (folder / "server" / "rounds.jsonl").open("a") as file:
        file.write('{"kind": "si')  # a line that is being written
    assert "3 of 8 rounds" in page()
    with (folder / "server" / "rounds.jsonl").open("a") as file:
        file.write("\n{}\n")
    assert "3 of 8 rounds" in page(), "a page is kept for two seconds"
    damaged = page_of(folder)()
    assert "cannot be read now" in damaged and str(folder) not in damaged
    assert "rounds.jsonl: record" in capsys.readouterr().err
    (folder / "run.json").unlink()
    (folder / "server" / "rounds.jsonl").unlink()
    assert "No round has ended yet." in page_of(folder)()


def test_the_server_gives_only_its_page_to_this_machine(folder):
    with served(lambda: "the page") as server:
        answer, content = ask(server)
        assert (answer.status, content) == (200, "the page")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert ask(server, method="HEAD")[1] == "" and ask(server, method="POST")[0].status == 501
        for path in ("/run.json", "/../run.json", "/%2e%2e/run.json"):
            assert ask(server, path)[0].status == 404, path
        assert ask(server, Host="attacker.example")[0].status == 421
        assert ask(server, Host="localhost:1")[0].status == 200


@pytest.mark.parametrize("text", ["", "host", "127.0.0.1:", "127.0.0.1:99999", "http://localhost:1", "localhost:1/x"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="give HOST:PORT"):
        parse_address(text)


def test_an_address_has_a_host_and_a_port():
    assert parse_address("8080") == ("127.0.0.1", 8080)
    assert parse_address("[::1]:80") == ("::1", 80) and parse_address("0.0.0.0:1") == ("0.0.0.0", 1)


def test_a_port_in_use_and_a_folder_without_runs_are_one_sentence(folder, capsys, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["watch", str(folder.parents[1]), "--serve", address]) == 2
        assert f"{address} is in use" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "none"), "--serve", "0"]) == 2
    assert "there are no runs" in capsys.readouterr().err


def test_ctrl_c_ends_it_and_another_host_is_warned_of(folder, capsys, monkeypatch):
    def interrupt(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupt)
    assert main(["watch", str(folder.parents[1]), "--serve", "0.0.0.0:0"]) == 0
    told = capsys.readouterr()
    assert "shows pfedsis/20260101-100000" in told.out and "without a password" in told.err


@pytest.mark.slow
def test_the_page_grows_in_a_browser_without_a_reload(folder, open_page, browser, monkeypatch):
    context = browser.new_context(viewport={"width": WIDE, "height": 900})
    page, problems, asked = context.new_page(), [], []
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    monkeypatch.setattr("shared_components.commands._watch_server._LEAST", 0.0)
    monkeypatch.setattr("shared_components.commands._watch_server._SHARE", 0)
    with served(page_of(folder)) as server:
        page.goto(server.url)
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            if out := os.environ.get("SURGFL_SCREENSHOTS"):
                page.screenshot(path=Path(out) / f"watch-{width}.png", full_page=True)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(wide) == 0
        assert "3 of 8" in page.locator("header").inner_text()
        from axe_playwright_python.sync_playwright import Axe

        found = [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        assert found == []
        page.evaluate("window.same = true")
        one_more_round(folder)
        page.get_by_text("4 of 8 rounds done").wait_for(timeout=20000)
        assert page.evaluate("window.same"), "the page was not loaded anew"
        monkeypatch.setattr(run_cleanup, "is_locked", lambda folder: False)
        change_info(folder, stopped="an administrator stopped it")
        page.locator("body[data-status=stopped]").wait_for(timeout=20000, state="attached")
        assert {url for url in asked if not url.startswith("data:")} == {server.url} and problems == []
    context.close()


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(make_run, tmp_path):
    folder = tmp_path / "ws-state" / "fedavg" / "20260101-100000"
    folder.parent.mkdir(parents=True)
    make_run(rounds=1, overlays=False).rename(folder)
    command = [sys.executable, "-m", "shared_components.cli", "watch", str(tmp_path / "ws"), "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=30)
        connection.request("GET", "/")
        assert "1 of 1 round done" in connection.getresponse().read().decode()
        process.send_signal(2)
        process.wait(30)
