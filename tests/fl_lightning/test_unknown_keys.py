"""A key that does not exist is told with those that do, the nearest first."""

from fl_lightning.unknown_keys import first_unknown, nearest, no_such_key

NAMES = ["accelerator", "min_epochs", "max_steps", "max_epochs"]


def test_the_nearest_name_or_nothing():
    assert nearest("max_epoch", NAMES) == " Did you mean `max_epochs`?"
    assert nearest("zzz", NAMES) == ""


def test_those_that_are_near_come_first_and_the_others_in_their_order():
    in_order = "max_epochs, min_epochs, max_steps, accelerator"
    assert no_such_key("trainer.max_epoch", "max_epoch", NAMES) == (
        f"`trainer.max_epoch`: no such key. Did you mean `max_epochs`? There are: {in_order}."
    )
    assert no_such_key("a.zzz", "zzz", NAMES) == f"`a.zzz`: no such key. There are: {', '.join(NAMES)}."


def test_where_nothing_may_stand():
    assert no_such_key("a.b", "b", ()) == "`a.b`: no such key."
    assert no_such_key("a.b", "b", (), "pkg.Own") == "`a.b`: no such key. `pkg.Own` takes no arguments."


def test_the_first_that_is_unknown_is_told():
    assert first_unknown("trainer", {"max_steps": 1, "q": 2, "r": 3}, NAMES).startswith("`trainer.q`: no such key.")
    assert first_unknown("trainer", {"max_steps": 1}, NAMES) == first_unknown("trainer", {}, NAMES) == ""
