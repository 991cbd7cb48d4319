"""Fields of a table by hand: what is a number, and what is none."""

import numpy as np

from datamodules.tables.values import decimal_mark, parse_numbers

NO_NUMBER = "is not a number with the decimal mark"


def test_numbers_by_hand():
    values, wrong = parse_numbers(["1.5", " -2 ", "", "NaN", ">10", "1_0", "1e400", "true", "0x1", "1e39"])
    np.testing.assert_array_equal(values, [1.5, -2, np.nan, np.nan, np.nan, np.nan, np.nan, 1, np.nan, np.nan])
    assert wrong == {4: "'>10' is not a number", 5: "'1_0' is not a number", 6: "'1e400' is too large",
                     8: "'0x1' is not a number", 9: "'1e39' is too large"}  # fmt: skip
    assert parse_numbers(["132,159", "7"], ",")[0].tolist() == [132.159, 7]
    assert parse_numbers(["1.5", "1"], ",")[1] == {0: f"'1.5' {NO_NUMBER} `,` (`data.init_args.decimal`)"}
    assert parse_numbers(["1.5", "1,5"])[1] == {1: f"'1,5' {NO_NUMBER} `.` (`data.init_args.decimal`)"}
    assert parse_numbers(["1e39", "1"])[1] == {0: "'1e39' is too large"}
    values, wrong = parse_numbers(["\u22123.25", "1e\u22123", "2\u22121", "\u2212"])  # the typographic minus
    assert values[:2].tolist() == [-3.25, 0.001] and sorted(wrong) == [2, 3] and wrong[3] == "'\u2212' is not a number"
    assert parse_numbers(["\u22123,25"], ",")[0].tolist() == [-3.25] and decimal_mark(["\u22123,25"]) == ","
    assert [decimal_mark(t) for t in (["1,5", ""], ["1,5", "1.5"], ["12"], ["a,b"])] == [",", ".", ".", "."]


def test_one_odd_number_does_not_change_the_decimal_mark_of_the_others():
    assert decimal_mark(["1,5"] * 59 + ["1.5"]) == "," and decimal_mark(["1.5"] * 59 + ["1,5"]) == "."
    assert decimal_mark(["1,250", "2,500", "-3,125", "950.5"]) == "."  # thousands
    assert decimal_mark(["0,250", "2,500", "3,125", "950.5"]) == decimal_mark(["1,250", "2,500"]) == ","
    assert decimal_mark(["7", "x", ""], ",") == decimal_mark(["a,b"], ",") == "," and decimal_mark(["7.5"], ",") == "."
