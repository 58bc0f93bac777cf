"""What the performance bench says of its figures; nothing is timed here."""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "examples" / "benchmarks" / "performance"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import keeping
    import measuring

    return keeping, measuring


@pytest.mark.parametrize(
    ("better", "now", "worse"),
    [
        ("less", 1.24, False), ("less", 1.26, True), ("less", 0.5, False),
        ("more", 0.76, False), ("more", 0.74, True), ("more", 2.0, False),
        ("", 9.0, False),
    ],
)  # fmt: skip
def test_what_got_worse_by_more_than_the_tolerance_is_named(bench, better, now, worse):
    keeping, measuring = bench
    kept, new = ({"part": "made up"} | measuring.figure("x", [x], better=better) for x in (1.0, now))
    assert keeping.regressions([kept], [kept], 0.25) == []
    found = keeping.regressions([new], [kept], 0.25)
    assert found == ([f"WORSE made up: x {now:.3f}, kept 1.000"] if worse else [])


def test_a_bit_more_than_none_is_worse_and_the_wall_clock_is_not(bench):
    keeping, measuring = bench
    for clock, worse in (("count", 1), ("wall", 0)):
        kept, new = ({"part": "p"} | measuring.figure("x", [x], clock=clock) for x in (0, 1))
        assert len(keeping.regressions([new], [kept], 0.25)) == worse
    assert keeping.regressions([new], [], 0.25) == []  # nothing is known of it


def test_figures_are_medians_with_what_their_bars_say(bench):
    _, measuring = bench
    line = measuring.figure("x", [3, 1, 2, 4, 5], bar=2, better="less")
    assert (line["median"], line["q1"], line["q3"], line["repeats"]) == (3, 2, 4, 5)
    assert line["verdict"] == "short by 50%"
    assert measuring.verdict(0.6, 0.8, "more") == "short by 25%"
    assert measuring.verdict(0.8, 0.8, "more") == measuring.verdict(0, 0, "less") == "PASS"
    assert measuring.verdict(3, 0, "less") == "short by 3"
    assert measuring.verdict(3, None, "less") == ""


def test_calls_take_turns_and_each_is_timed_alone(bench):
    _, measuring = bench
    now, calls = [0.0], []

    def takes(name, seconds):
        def call():
            calls.append(name)
            now[0] += seconds

        return call

    taken = measuring.in_turn({"a": takes("a", 0.25), "b": takes("b", 1.0)}, 3, clock=lambda: now[0])
    assert taken == {"a": [0.25] * 3, "b": [1.0] * 3}
    assert "".join(calls) == "aabb" + 3 * "ab"
    assert measuring.ratios(taken["b"], taken["a"]) == [4, 4, 4]
    assert measuring.slope([1, 10, 100], [2, 200, 20000]) == pytest.approx(2)


def test_a_part_that_is_run_alone_leaves_the_others(bench, tmp_path):
    keeping, _ = bench
    keeping.write(tmp_path, [{"part": "a", "n": 1}, {"part": "b", "n": 1}], [], ["a", "b"])
    keeping.write(tmp_path, [{"part": "a", "n": 2}], keeping.read(tmp_path), ["a"])
    assert [(line["part"], line["n"]) for line in keeping.read(tmp_path)] == [("b", 1), ("a", 2)]
