"""A run's folder has one writer: a second process is told before round 1, and a killed one leaves nothing behind."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import lightning as L
import pytest
from federations import CPU, Central, Linear, clients, federate

from fl_lightning import FederatedTrainer
from fl_lightning.central import fit_centrally
from fl_lightning.reporting import run_lock
from fl_lightning.reporting.run_lock import LOCK, RunLock

WRITER = "import sys, pathlib; from fl_lightning.reporting.run_lock import RunLock; lock = RunLock(); " \
    "lock.hold(pathlib.Path(sys.argv[1])); print('holds', flush=True); sys.stdin.read()"  # fmt: skip


@contextmanager
def writer(folder):
    """Another process that writes the run, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"holds\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def contents(folder):
    """All files of a run but the lock."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != LOCK}


def test_a_second_process_is_told_before_round_one_and_a_killed_one_leaves_no_lock(tmp_path):
    run = federate(tmp_path, data=clients((6, 8)), num_rounds=1).run_dir
    before = contents(run)

    def go_on(ckpt_path, **more):
        settings = {"num_rounds": 2, "seed": 0, **more}
        fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, **settings)
        return fed.fit(Linear(), clients((6, 8)), ckpt_path=ckpt_path)

    with writer(run) as process:
        for given in ("last", str(run)):
            with pytest.raises(ValueError, match=rf"`{run}`: another process \(pid {process.pid}\) is writing this run; two wo"
                               ".*Wait until it ends, or end it; or begin a new run, without `--ckpt_path`"):  # fmt: skip
                go_on(given)
        assert contents(run) == before
        fed = federate(tmp_path, data=clients((6, 8)), num_rounds=1)  # a new run has a folder of its own
        assert fed.run_dir != run and fed.validate(Linear(), clients((6, 8)), str(run))  # and reading is nobody's harm
    assert go_on(str(run))["rounds_run"] == 2


def test_the_lock_is_free_after_a_fit_whether_it_ended_well_or_not(tmp_path):
    class Ends(Linear):
        def on_round_start(self, round, num_rounds):
            raise KeyboardInterrupt

    run = federate(tmp_path, data=clients((6, 8)), num_rounds=1).run_dir
    arguments = {"trainer": {**CPU, "logger": False, "default_root_dir": str(tmp_path)}, "seed": 0, "force": True}
    with pytest.raises(KeyboardInterrupt):
        FederatedTrainer(num_rounds=2, **arguments).fit(Ends(), clients((6, 8)), ckpt_path=str(run))
    with pytest.raises(ValueError, match="made with another"):  # half-way through its set-up
        FederatedTrainer(num_rounds=2, **{**arguments, "seed": 1, "force": False}).fit(Linear(), clients((6, 8)), str(run))
    lock = RunLock()
    lock.hold(run)
    with pytest.raises(ValueError, match="another fit of this process is writing this run"):
        RunLock().hold(run)
    lock.release()
    assert FederatedTrainer(num_rounds=2, **arguments).fit(Linear(), clients((6, 8)), str(run))["rounds_run"] == 2


def test_a_central_run_holds_its_folder(tmp_path):
    class Looks(Linear):
        def on_train_start(self):
            (folder,) = (tmp_path / "c").iterdir()
            with pytest.raises(ValueError, match="is writing this run"):
                RunLock().hold(folder)

    stock = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    _, folder = fit_centrally(stock, Looks(), Central(*clients((8, 9))), None, "c", {"default_root_dir": str(tmp_path)})
    RunLock().hold(folder)


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path):
    child = None
    with RunLock() as lock:
        lock.hold(tmp_path)
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:  # a loader's worker that outlives a killed parent
            os.write(begins, b"x")
            signal.pause()
            os._exit(0)
        assert os.read(begun, 1) == b"x"
        lock.release()
    try:
        RunLock().hold(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("missing", [True, False])
def test_where_nothing_can_be_locked_it_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch, caplog, missing):
    class Refuses:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(descriptor, how):
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock, "fcntl", None if missing else Refuses)
    monkeypatch.setattr(run_lock, "_told", set())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        RunLock().hold(tmp_path / name)
    (said,) = caplog.messages
    assert ("this system has no `flock`" if missing else "No locks available") in said and "no other process goes on" in said


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"The run's folder `{tmp_path / 'file'}` cannot be written: Not a directory"):
        RunLock().hold(tmp_path / "file")
