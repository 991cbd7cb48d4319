"""A client's memory: drafts share nothing that is written to, sections, and what is empty."""

import pickle

import pytest
import torch

from fl_lightning.engine import store as store_module
from fl_lightning.engine.store import ClientStore, read_tensors


def filled() -> ClientStore:
    store = ClientStore()
    store.put_section("a", {"x": torch.ones(2), "y/z": torch.zeros(1)})
    store.put_section("ab", {"x": torch.full((1,), 7.0)})
    store.values["mended"] = True
    return store


def test_a_draft_that_is_thrown_away_changes_nothing():
    store = filled()
    draft = store.draft()
    assert draft.same_as(store) and store.same_as(draft)
    draft.values["mended"] = False
    draft.values["new"] = 1
    draft.put_section("a", {})
    assert store.values == {"mended": True} and list(store.section("a")) == ["x", "y/z"]


def test_sections_are_told_apart_by_their_whole_name():
    store = filled()
    assert list(store.section("a")) == ["x", "y/z"] and list(store.section("ab")) == ["x"] and store.section("b") == {}
    store.put_section("a", {"w": torch.ones(1)})
    assert list(store.section("a")) == ["w"] and store.section("ab")["x"].item() == 7.0


def test_same_means_the_very_tensors_and_equal_values():
    store = filled()
    for change in (
        lambda d: d.values.update(mended=False),
        lambda d: d.put_section("a", {**d.section("a"), "x": torch.ones(2)}),  # equal, but another
        lambda d: d.put_section("ab", {}),
        lambda d: d.put_section("c", {"x": torch.ones(1)}),
    ):
        draft = store.draft()
        change(draft)
        assert not draft.same_as(store) and not store.same_as(draft)


def test_empty_is_what_holds_neither_tensors_nor_values():
    tensors, values = ClientStore(), ClientStore()
    tensors.put_section("a", {"x": torch.ones(1)})
    values.values["mended"] = True
    assert not ClientStore() and tensors and values


def test_saved_and_loaded(tmp_path):
    store = filled()
    store.save(tmp_path / "client.pt")
    again = ClientStore.load(tmp_path / "client.pt")
    assert again.values == store.values and again.tensors.keys() == store.tensors.keys()
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in store.tensors.items())
    assert not ClientStore.load(tmp_path / "absent.pt")


def test_the_whole_file_is_on_the_disk_before_it_counts_as_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(store_module.os, "fsync", lambda descriptor: synced.append(store_module.os.fstat(descriptor).st_size))
    filled().save(tmp_path / "client.pt")
    assert synced == [(tmp_path / "client.pt").stat().st_size]


class Other:
    """What a file of tensors does not hold."""


def test_nothing_but_tensors_and_text_is_ever_made_from_a_file(tmp_path):
    torch.save({"tensors": {"x": Other()}, "values": "{}"}, tmp_path / "client.pt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        read_tensors(tmp_path / "client.pt")
