"""Names of columns, classes and clients by hand."""

from datamodules.tables.names import find_spelling, fold, has_name, is_number, quote, quote_all, sort_names


def test_names_that_differ_in_case_spaces_or_signs_are_the_same():
    assert fold("Log_S (25 C)") == "logs25c" and fold("--") == "--"
    assert find_spelling("logS", ["x", "log_s"]) == "log_s" and find_spelling("x", ["x", "y"]) is None


def test_names_of_numbers_are_sorted_by_value():
    assert sort_names({"10", "9", "-1.5"}) == ["-1.5", "9", "10"]
    assert sort_names({"10", "9", "b"}) == ["10", "9", "b"] and sort_names([]) == []
    assert is_number("1e3") and not is_number("nan") and not is_number("a")


def test_a_number_of_a_column_is_no_name():
    assert has_name("f") and not has_name("column 3") and not has_name("Unnamed: 0")


def test_messages_are_cut_where_names_are_long_or_many():
    assert quote("x" * 41) == repr("x" * 37 + "...") and quote("x" * 40) == repr("x" * 40)
    assert quote_all(["a", "b", "c"], most=2) == "'a', 'b' and 1 more" and quote_all(["a"]) == "'a'"
