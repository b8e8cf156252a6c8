"""Text from others reaches no terminal and no table as it came."""

import io
import logging

import pytest

from shared_components.common.progress_display import Board
from shared_components.common.sanitise import is_plain, one_line, printable, table_cells
from shared_components.flare.console import LogConsole
from shared_components.flare.patches import final_message
from shared_components.reporting.tables import Table, as_markdown, as_text

FORGED = "shaft\x1b[2J\x1b]0;title\x07\r\nround 2/2  site-1  Dice 1.000\u202e\x9b31m"
MEANT = "shaft round 2/2 site-1 Dice 1.00031m"


@pytest.mark.parametrize(
    "text, good",
    [
        ("shaft", True), ("Fläche, 鉗子 (2)", True), ("", False), ("a\nb", False), ("a\u2028b", False),
        ("\x1b[31mred", False), ("\u202eevil", False), ("\ud800", False), ("x" * 101, False), (3, False), (None, False),
    ],
)  # fmt: skip
def test_a_name_prints_as_it_reads(text, good):
    assert is_plain(text) is good


def test_a_sentence_is_put_on_one_line_and_bounded():
    assert one_line(FORGED) == MEANT
    assert one_line("a  b") == "a  b"  # what prints as it reads stays
    assert one_line("x" * 10**7, 20) == "x" * 17 + "..."


def test_our_own_line_breaks_stay_and_nothing_that_a_terminal_obeys():
    assert printable("head\n----\n1\t2") == "head\n----\n1\t2"
    text = printable(FORGED)
    assert "\n" in text and not set(text) & set("\x1b\r\x07\x9b\u202e")


def test_no_way_to_the_terminal_lets_an_escape_through(capsys, caplog):
    out = io.StringIO()
    Board(out, read=dict).say(FORGED)
    final_message.say(FORGED, first=lambda: None)
    final_message._print()
    with caplog.at_level(logging.INFO):
        LogConsole().say(FORGED)
    lines = [record.getMessage() for record in caplog.records]
    assert not any("\n" in line for line in lines), "each line of ours is a record of its own"
    for text in (out.getvalue(), capsys.readouterr().err, "\n".join(lines)):
        assert "shaft" in text and not set(text) & set("\x1b\r\x07\x9b\u202e")


@pytest.mark.parametrize("write", [as_text, as_markdown])
def test_a_cell_cannot_forge_a_row_of_a_table(write):
    table = Table("t", ("site", FORGED), (("site-1", "1"), (FORGED, "2")))
    honest = Table("t", ("site", "shaft"), (("site-1", "1"), ("shaft", "2")))
    assert len(write(table).splitlines()) == len(write(honest).splitlines())
    assert "\x1b" not in write(table) and MEANT in write(table)


@pytest.mark.parametrize(
    "cell, expected",
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"), ("+1+1", "'+1+1"), ("-2+3", "'-2+3"), ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("-", "'-"), ("-0.5", "-0.5"), ("+1e-05", "+1e-05"), ("-inf", "-inf"),
        (-3, -3), (-0.5, -0.5), (None, None), ("", ""), ("shaft", "shaft"), ("a=b", "a=b"),
    ],
)  # fmt: skip
def test_a_cell_of_a_table_is_no_formula(cell, expected):
    """The beginnings are those of OWASP's page on CSV injection."""
    assert table_cells([cell]) == [expected]
