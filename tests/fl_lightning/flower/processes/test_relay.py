"""The ServerApp between `fit` and the sites, with a stand-in for Flower's grid."""

import importlib.util
import socket
import sys
import threading
import types

import pytest

from fl_lightning.flower import engine
from fl_lightning.flower.processes import frames


@pytest.fixture
def relay(monkeypatch):
    """`processes/relay.py` as Flower loads it, without Flower."""
    names = {
        "flwr.app": ("Array", "ArrayRecord", "Context", "Error", "Message", "RecordDict"),
        "flwr.clientapp": ("ClientApp",),
        "flwr.serverapp": ("Grid", "ServerApp"),
    }
    for module, classes in names.items():
        made = types.ModuleType(module)
        for each in classes:
            setattr(made, each, type(each, (), {"main": lambda self: lambda function: function}))
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.setitem(sys.modules, "frames", frames)
    spec = importlib.util.spec_from_file_location("relay_under_test", engine.PROCESSES / "relay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Grid:
    """Sites that never answer."""

    def __init__(self):
        self.asked = threading.Event()

    def pull_messages(self, pending):
        self.asked.set()
        return []


def test_the_server_app_ends_with_fit_even_while_sites_are_at_work(relay):
    here, there = socket.socketpair()
    grid, ended = Grid(), []

    def collect():
        try:
            relay._collect(grid, there, {"1": "0"}, None)
        except SystemExit as end:
            ended.append(str(end))

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert grid.asked.wait(10)
    here.close()  # `fit` is killed
    thread.join(10)
    assert ended == ["`fl-lightning fit` has ended while sites were at work."]


def test_who_does_not_answer_in_time_is_reported(relay):
    here, there = socket.socketpair()
    with here, there:
        relay._collect(Grid(), there, {"1": "0", "2": "2"}, 0.2)
        answers = [frames.unpack(frames.receive(here))[0] for _ in range(2)]
    assert answers == [{"tag": "0", "error": "no answer within 0.2 s"}, {"tag": "2", "error": "no answer within 0.2 s"}]
