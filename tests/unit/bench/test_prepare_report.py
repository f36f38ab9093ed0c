"""The tables of `make bench-prepare`."""

from bench.prepare_memory import Peak, table
from bench.prepare_report import MEMORY, PAGE, SPEED, Rate, page, rates_table, section


def test_rates_are_medians_and_the_peak_is_that_of_the_largest_worker() -> None:
    rates = {
        ("megatron", 1): [Rate(100.0, 50.0, None), Rate(300.0, 60.0, None), Rate(200.0, 40.0, None)],
        ("ours", 1): [Rate(500.0, 100.0, 100 << 20), Rate(400.0, 120.0, 300 << 20), Rate(390.0, 90.0, 1)],
    }
    assert rates_table(rates)[2:] == [
        "| 1 | a second | 200 (100 to 300) | 400 (390 to 500) | 2.00 | 300 |",
        "| 1 | a second of CPU | 50 (40 to 60) | 100 (90 to 120) | 2.00 | 300 |",
    ]


def test_a_peak_is_shown_beside_the_size_of_its_file() -> None:
    peaks = [Peak("zst", 5 << 20, 200 << 20, 3.6, 9.0)]
    assert table(peaks, by_line=False)[-1] == "| zst | 5 | 200 | 4 |"


def test_each_table_has_a_place_of_its_own_in_the_page() -> None:
    text = PAGE.read_text()
    for name in (MEMORY, SPEED):
        new = section("make it", ["| a |", "|---|"])
        changed = page(text, name, new)
        assert new in changed
        other = SPEED if name == MEMORY else MEMORY
        assert page(changed, other, "x\n") != changed
        assert page(changed, name, new) == changed
