"""Memory and open files do not grow with rounds (`benchmarks/` has the long version)."""

import gc
import os
from pathlib import Path

import pytest
import torch
from federations import Deep, Linear, clients, federate

ROUNDS = 30


def live_tensors() -> int:
    gc.collect()
    return sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts files in /proc")
def test_thirty_rounds_of_twenty_clients_are_flat(tmp_path):
    counts = []

    class Watched(Deep):
        def __init__(self):
            super().__init__()
            self.rounds = None

        def on_round_start(self, round, num_rounds):
            if round % 4 == 1 and (not counts or counts[-1][0] != round):
                counts.append((round, len(os.listdir("/proc/self/fd")), live_tensors()))

    federate(tmp_path, Watched, clients((6,) * 20, held_out=4), {"logger": True}, num_rounds=ROUNDS, check_val_every_n_rounds=3)
    files, tensors = ([c[i] for c in counts] for i in (1, 2))
    assert len(counts) == 8  # rounds 1, 5, ..., 29
    assert max(files[1:]) == min(files[1:]), files
    assert max(tensors[1:]) <= tensors[1] + 5, tensors


def test_after_a_run_the_files_are_closed_and_the_clients_are_free(tmp_path):
    federate(tmp_path, Linear, clients((6, 6)), {"logger": True})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        federate(tmp_path, Linear, clients((6, 6)), {"logger": True})
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
