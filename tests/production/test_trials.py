"""The trials that fit into CI, and what the table is made of."""

import pytest

from evidence.production.__main__ import Row, table
from evidence.production.trials import Trial, all_trials

TRIALS = all_trials()


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in TRIALS if one.quick], ids=lambda one: one.run.__name__)
def test_it_survives(one, deploy, capsys):
    figure = one.run(deploy)
    assert any(letter.isdigit() for letter in figure), "every row has a figure"
    with capsys.disabled():
        print(f"\n{one.words}: {figure}")


def test_no_two_trials_have_one_name_or_the_same_words():
    assert len({one.words for one in TRIALS}) == len({one.run.__name__ for one in TRIALS}) == len(TRIALS) > 0
    assert any(one.quick for one in TRIALS) and not all(one.quick for one in TRIALS)


def test_what_is_lost_stands_out_in_the_table():
    good = Trial("room", "a | b", lambda deploy: "", True)
    rows = [Row(good, True, "3 of 3", 2.4), Row(good, False, "AssertionError: gone", 60.0)]
    survived, lost = table(rows).splitlines()[2:]
    assert survived == "| a \\| b | 3 of 3 | yes | 2 |" and lost == "| a \\| b | AssertionError: gone | **no** | 60 |"
