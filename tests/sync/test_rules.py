"""The rules that look at versions only, and what holds for all rules."""

from __future__ import annotations

import numpy as np
import pytest

from clusterenv.errors import ConfigError, ConfigTypeError
from clusterenv.sync.aps import APS
from clusterenv.sync.parse import parse_sync
from clusterenv.sync.rules import Always, Decider, Every, Never, OnChange, Reason, Rule
from clusterenv.sync.versions import Version
from tests.sync.kit import V0, V1, Node, situation

RULES: list[Rule] = [Always(), Every(3), OnChange(), Never(), APS()]
BUT_ALWAYS = RULES[1:]


def test_the_reasons_are_the_ones_that_are_promised() -> None:
    assert [reason.value for reason in Reason] == (
        "first divergence lag age stall interval change always budget reconnect forced".split()  # noqa: SIM905
    )


@pytest.mark.parametrize("rule", RULES, ids=repr)
class TestAllRules:
    def test_the_first_sync_always_comes(self, rule: Rule) -> None:
        decider = rule.start(4)
        assert decider.consider(situation(None, V0, [0.0] * 4)) is Reason.FIRST

    def test_a_first_sync_that_failed_is_asked_for_again_as_the_first(self, rule: Rule) -> None:
        decider = rule.start(1)
        assert [decider.consider(situation(None, V0)) for _ in range(3)] == [Reason.FIRST] * 3

    def test_a_node_that_lost_its_weights_gets_them_again(self, rule: Rule) -> None:
        node = Node(rule)
        node.held = None
        assert node.ask() is Reason.RECONNECT

    def test_weights_of_an_earlier_epoch_are_replaced(self, rule: Rule) -> None:
        node = Node(rule)
        node.newest = Version(node.newest.epoch + 1, 0)
        assert node.ask() is Reason.RECONNECT
        # A fresh decider, whose head has just started anew, sees the same.
        assert rule.start(1).consider(situation(Version(0, 9), Version(1, 0))) is Reason.RECONNECT

    def test_a_demand_is_met_once(self, rule: Rule) -> None:
        node = Node(rule)
        node.decider.force()
        node.newest = V1
        assert node.ask() is Reason.FORCED
        assert node.ask(request=False) is None

    def test_a_demand_is_kept_until_weights_have_moved(self, rule: Rule) -> None:
        node = Node(rule)
        node.decider.force()
        late = situation(V0, V1)
        assert [node.decider.consider(late) for _ in range(2)] == [Reason.FORCED] * 2

    def test_a_demand_for_what_is_there_already_is_met(self, rule: Rule) -> None:
        node = Node(rule)
        node.decider.force()
        assert node.ask(request=False) is None
        node.newest = V1
        assert node.ask(request=False) is not Reason.FORCED

    def test_a_late_word_of_an_old_version_moves_nothing(self, rule: Rule) -> None:
        node = Node(rule)
        node.held = Version(0, 5)
        assert node.ask(1.0, request=False) is None


@pytest.mark.parametrize("rule", BUT_ALWAYS, ids=repr)
def test_frozen_weights_never_move_again(rule: Rule) -> None:
    node = Node(rule)
    for step in range(50):
        node.now_s, node.batches = 100.0 * step, step
        node.ask(5.0)
    assert node.reasons == [Reason.FIRST]


def test_always_moves_with_each_request_and_not_with_a_publish() -> None:
    node = Node(Always())
    assert [node.ask(), node.publish(), node.ask(), node.ask()] == [Reason.ALWAYS, None, Reason.ALWAYS, Reason.ALWAYS]


def test_on_change_moves_with_each_version() -> None:
    node = Node(OnChange())
    assert [node.publish(), node.ask(), node.publish()] == [Reason.CHANGE, None, Reason.CHANGE]


def test_every_k_moves_with_each_kth_version() -> None:
    node = Node(Every(3))
    assert [node.publish() for _ in range(7)] == [None, None, Reason.INTERVAL, None, None, Reason.INTERVAL, None]


def test_every_1_is_each_version() -> None:
    node = Node(Every(1))
    assert [node.publish() for _ in range(3)] == [Reason.INTERVAL] * 3


def test_never_is_never() -> None:
    node = Node(Never())
    assert not any(node.publish(9.0) for _ in range(100))


def test_what_rules_do_not_look_at_has_no_threshold() -> None:
    assert [rule.start(1).threshold for rule in RULES] == [None, None, None, None, 0.05]


def test_a_decider_must_decide() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?decide"):
        Decider()  # type: ignore[abstract]


def test_unknown_divergences_count_as_none() -> None:
    assert situation(V0, V1, [float("nan"), 0.25, 0.0]).largest == 0.25
    assert situation(V0, V1, [float("nan")]).largest == 0.0
    assert situation(V0, V1, [float("inf"), float("nan")]).largest == np.inf


@pytest.mark.parametrize("value", [0, -1])
def test_every_refuses_less_than_one(value: int) -> None:
    with pytest.raises(ConfigError, match=f"versions={value} must be at least 1"):
        Every(value)


@pytest.mark.parametrize("value", [1.5, "4", True, None])
def test_every_refuses_what_is_no_whole_number(value: int) -> None:
    with pytest.raises(ConfigTypeError, match="must be a whole number of at least 1"):
        Every(value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("always", Always()),
        ("never", Never()),
        ("on-change", OnChange()),
        ("every:4", Every(4)),
        ("aps", APS()),
        ("aps:0.05", APS(0.05)),
        ("aps:1e-3", APS(threshold=0.001)),
        (APS(target_ess=0.9), APS(target_ess=0.9)),
        (Every(2), Every(2)),
    ],
)
def test_short_texts(text: str | Rule, rule: Rule) -> None:
    assert parse_sync(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onchange", r"unknown sync 'onchange'\. Did you mean 'on-change'\? Known: always, aps, every, never, on-cha"),
        ("asp:0.05", r"unknown sync 'asp'\. Did you mean 'aps'\?"),
        ("", "unknown sync ''"),
        ("every", "sync='every': say every how many versions, as in 'every:4'"),
        ("every:x", "as in 'every:4'"),
        ("every:-2", "as in 'every:4'"),
        ("every:0", "versions=0 must be at least 1"),
        ("aps:", "sync='aps:': the threshold must be a number, as in 'aps:0.05'"),
        ("aps:much", "the threshold must be a number"),
        ("aps:nan", "the threshold must be a number"),
        ("aps:-1", "threshold=-1.0 must not be negative"),
        ("never:3", "sync='never:3': 'never' takes no number. Write sync='never'."),
    ],
)
def test_a_wrong_text_is_told_with_the_right_one(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sync(text)


@pytest.mark.parametrize("value", [None, 3, APS])
def test_what_is_no_rule_is_refused(value: Rule) -> None:
    with pytest.raises(ConfigTypeError, match=r"must be a text such as 'aps:0\.05', or a rule"):
        parse_sync(value)
