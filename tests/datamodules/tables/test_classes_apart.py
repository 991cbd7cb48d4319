"""Classes named apart by clients are found, and clean ones are not."""

from datamodules.tables.classes_apart import find_classes_apart


def test_classes_that_differ_in_case_or_blanks_are_told_with_their_clients():
    (found,) = find_classes_apart(["kiel", "ulm"], ["Acid", "acid ", "base"], [[3, 0, 2], [0, 4, 1]])
    assert (found["kind"], found["level"], found["client"], found["count"]) == ("classes_alike", "finding", None, 2)
    assert all(word in found["message"] for word in ("Acid", "acid", "kiel", "ulm")) and "base" not in found["message"]


def test_a_client_that_shares_no_class_is_told():
    (found,) = find_classes_apart(["a", "b", "c"], ["x", "y", "1", "2"], [[1, 1, 0, 0], [2, 1, 0, 0], [0, 0, 3, 4]])
    assert (found["kind"], found["level"], found["client"], found["count"]) == ("classes_apart", "finding", 2, 2)
    assert "'c'" in found["message"]


def test_shared_classes_one_client_and_clients_without_labels_are_no_findings():
    assert find_classes_apart(["a", "b"], ["x", "y"], [[1, 0], [1, 2]]) == []
    assert find_classes_apart(["a"], ["x", "X"], [[1, 2]]) == []
    assert find_classes_apart(["a", "b"], ["x", "X"], [[1, 0], [2, 0]]) == []  # nobody has one of them
    assert find_classes_apart(["a", "b"], ["x", "y"], [[1, 1], [0, 0]]) == []
