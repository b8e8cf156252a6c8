"""Which answers count: the first of each site that was asked, in time."""

import pytest

from shared_components.federation.messages import Message
from shared_components.federation.protocol import Answers
from shared_components.flare.exchange import Exchange


@pytest.fixture
def exchange():
    return Exchange(["a", "b", "c"], started=100.0, needed=2, grace=5.0, longest=60.0)


def test_only_a_sites_first_answer_counts(exchange):
    first, second = Message({"n": 1}), Message({"n": 2})
    assert exchange.reply("a", first) and not exchange.reply("a", second)
    assert not exchange.fail("a", "its task ended")
    assert exchange.replies == {"a": first} and exchange.failures == {}


def test_an_answer_of_a_site_that_was_not_asked_does_not_count(exchange):
    assert not exchange.reply("d", Message({}))
    assert exchange.replies == {} and exchange.pending == ["a", "b", "c"]


def test_an_answer_after_its_site_was_given_up_does_not_count(exchange):
    exchange.close("it was too slow")
    assert not exchange.reply("a", Message({}))
    assert exchange.replies == {} and set(exchange.failures) == {"a", "b", "c"} == set(exchange.late)


def test_the_grace_time_starts_with_the_last_reply_that_was_needed(exchange):
    exchange.reply("a", Message({}))
    exchange.expire(130.0)
    assert exchange.pending == ["b", "c"]
    exchange.reply("c", Message({}))
    exchange.expire(140.0)
    exchange.expire(145.0)
    assert exchange.pending == ["b"]
    exchange.expire(145.1)
    assert exchange.pending == [] and "grace_seconds" in exchange.failures["b"]


def test_refusals_are_not_the_answers_that_the_grace_time_waits_for(exchange):
    exchange.fail("a", "no data")
    exchange.fail("b", "no data")
    exchange.expire(110.0)
    exchange.expire(120.0)
    assert exchange.pending == ["c"]


def test_nobody_is_waited_for_longer_than_the_longest_wait(exchange):
    exchange.expire(160.0)
    assert exchange.pending == ["a", "b", "c"]
    exchange.expire(160.1)
    assert exchange.pending == []
    assert exchange.failures["c"] == "it did not answer within 60 s (longest_wait_seconds)"


def test_reasons_name_each_site_once(exchange):
    exchange.fail("b", "site b: /x/site.yaml: unknown key 'datset'")
    exchange.fail("a", "its process died")
    reasons = Answers(exchange.replies, exchange.failures).reasons()
    assert reasons == "a: its process died; b: /x/site.yaml: unknown key 'datset'"


def test_replies_are_handed_over_once_and_not_kept(exchange):
    reply = Message({})
    exchange.reply("a", reply)
    assert exchange.hand_over() == {"a": reply}
    assert exchange.replies == {} and exchange.pending == ["b", "c"]
    assert not exchange.reply("a", Message({})), "it has answered, whoever holds the answer"
