"""The seam of an engine: what one has that says nothing of itself."""

from pathlib import Path

import torch
from federations import Linear, federate

from fl_lightning.engine import InProcess
from fl_lightning.engine.transport import Engine, client_file


def test_an_engine_that_does_not_say_its_threads_has_one(tmp_path):
    class Plain(Engine):
        """Hands everything on to another engine."""

        inner = InProcess()

        def start(self, spec):
            self.inner.start(spec)

        def exchange(self, requests, timeout):
            return self.inner.exchange(requests, timeout)

        def save(self, directory, previous):
            self.inner.save(directory, previous)

        def load(self, directory):
            self.inner.load(directory)

    class Counting(Linear):
        seen: set = set()

        def training_step(self, batch, batch_idx):
            self.seen.add(torch.get_num_threads())
            return super().training_step(batch, batch_idx)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert not federate(tmp_path, Counting, engine=Plain()).results["failures"]
        assert Counting.seen == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_files_of_clients_sort_like_their_numbers():
    assert client_file(Path("x"), 7) == Path("x/client_00007.pt")
