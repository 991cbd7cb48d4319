"""What operators type and write: configs, keys, the extra; all that runs without Flower."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import yaml
from flower_sites import EXPERIMENTS, write_site

from fl_lightning.engine import InProcess
from fl_lightning.engine.store import ClientStore
from fl_lightning.flower import AtSites, Flower, extra
from fl_lightning.flower.commands import main as command
from fl_lightning.flower.contact import tensors_sha256
from fl_lightning.flower.processes import children, frames
from fl_lightning.flower.server_config import ServerConfig
from fl_lightning.flower.site_config import SiteConfig
from fl_lightning.flower.state import StateFolder


class Version(NamedTuple):
    major: int
    minor: int


def absent(name):
    raise PackageNotFoundError(name)


def on_python(monkeypatch, minor):
    """As if this were Python 3.``minor``; the tests run on older ones than Flower does."""
    monkeypatch.setattr(extra, "sys", SimpleNamespace(version_info=Version(3, minor)))


def test_without_the_extra_the_engine_says_what_to_install(monkeypatch, tmp_path):
    from fl_lightning.cli import FederatedCLI

    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENTS["fedsage"]))
    on_python(monkeypatch, 11)
    monkeypatch.setattr(extra, "version", absent)
    with pytest.raises(ValueError, match=r"pip install 'fl-lightning\[flower\]'"):
        FederatedCLI(["fit", "--config", str(path), "--federation.engine", "fl_lightning.flower.Flower"])


@pytest.mark.parametrize("arguments", [["server"], ["client"], ["site", "init", "x", "--name", "a"]])
def test_without_the_extra_so_do_the_commands(monkeypatch, arguments):
    on_python(monkeypatch, 11)
    monkeypatch.setattr(extra, "version", absent)
    with pytest.raises(ValueError, match="needs Flower, which is not installed"):
        command(arguments)


def test_other_versions_of_flower_and_python_are_refused(monkeypatch):
    on_python(monkeypatch, 11)
    monkeypatch.setattr(extra, "version", lambda name: "1.43.0")
    with pytest.raises(ValueError, match=r"flwr 1.43.0 is installed, but fl-lightning needs flwr 1.42"):
        extra.require_flower()
    on_python(monkeypatch, 10)
    with pytest.raises(ValueError, match="needs Python 3.11 or newer .* this is 3.10"):
        extra.require_flower()


def test_data_at_sites_need_an_engine_that_reaches_them():
    with pytest.raises(ValueError, match="`federation.engine: InProcess` runs clients here. Use .*flower.Flower"):
        InProcess().remote_clients({})
    assert not hasattr(AtSites(), "client_datamodules")


@pytest.mark.parametrize("key", ["threads", "wait_for_sites", "contact_timeout"])
def test_engine_arguments_are_checked(key):
    with pytest.raises(ValueError, match=f"`federation.engine.init_args.{key}` must be positive, got 0"):
        Flower(**{key: 0})


def test_a_site_file_says_what_is_wrong_with_it(tmp_path):
    good = yaml.safe_load(write_site(tmp_path, "basel", ["site.yaml"]).read_text())

    def read(**changes):
        content = {k: v for k, v in {**good, **changes}.items() if v is not None}
        (tmp_path / "site.yaml").write_text(yaml.safe_dump(content))
        return SiteConfig.read(tmp_path / "site.yaml")

    site = read(data={"files": ["a b.csv"], "smiles_column": "S"}, devices=2)
    assert site.arguments(tmp_path / "e.yaml")[3:] == [
        '--data.init_args.files=["a b.csv"]', "--data.init_args.smiles_column=S", "--trainer.accelerator=cpu",
        "--trainer.devices=2",
    ]  # fmt: skip
    assert site.folder == tmp_path / "state"
    for changes, message in (
        ({"server": None}, "lacks server"),
        ({"sever": "x"}, "has unknown sever"),
        ({"server": "https://example.org"}, "`server` must be `host:port`"),
        ({"name": "../basel"}, "`name` must be letters"),
        ({"key": "none.key"}, "`key: none.key`: no such file"),
        ({"experiments": []}, "`experiments` must name at least one config file"),
        ({"data": ["a.csv"]}, "`data` must hold values for the experiment's `data.init_args`"),
        ({"whole_data": "yes please"}, "`whole_data` must be true or false"),
    ):
        with pytest.raises(ValueError, match=message):
            read(**changes)
    with pytest.raises(ValueError, match="none.yaml` does not exist"):
        SiteConfig.read(tmp_path / "none.yaml")


def test_the_control_interface_cannot_be_exposed(tmp_path):
    for name in ("c", "k", "a", "p"):
        (tmp_path / name).touch()
    good = {"listen": "0.0.0.0:8443", "control": "127.0.0.1:8000", "certificate": "c", "key": "k", "ca": "a",
            "sites": {"basel": "p", "oslo": "p"}}  # fmt: skip
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(good))
    assert list(ServerConfig.read(path).sites) == ["basel", "oslo"]
    path.write_text(yaml.safe_dump({**good, "control": "0.0.0.0:8000"}))
    with pytest.raises(ValueError, match="it has no login, so whoever reaches it rules the federation"):
        ServerConfig.read(path)
    path.write_text(yaml.safe_dump({**good, "sites": None}))
    with pytest.raises(ValueError, match="lacks sites"):
        ServerConfig.read(path)


def test_keys_are_private_and_never_overwritten(tmp_path):
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason="comes with the extra")
    pytest.importorskip("flwr", reason="needs the extra `fl-lightning[flower]`")
    assert command(["site", "init", str(tmp_path / "fed"), "--test", "2"]) == 0
    site = tmp_path / "fed" / "site-1"
    assert (site / "site-1.key").stat().st_mode & 0o777 == 0o600
    private = serialization.load_ssh_private_key((site / "site-1.key").read_bytes(), None)
    public = (site / "site-1.pub").read_bytes()
    encoded = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert encoded == public == (tmp_path / "fed" / "server" / "keys" / "site-1.pub").read_bytes()
    assert (tmp_path / "fed" / "server" / "server.key").stat().st_mode & 0o777 == 0o600
    server = ServerConfig.read(tmp_path / "fed" / "server" / "server.yaml")
    assert list(server.sites) == ["site-0", "site-1"]
    with pytest.raises(ValueError, match="is not empty; keys are never overwritten"):
        command(["site", "init", str(site), "--name", "again"])
    with pytest.raises(ValueError, match="needs one of --name .* --host .* --test"):
        command(["site", "init", str(tmp_path / "x")])


def test_of_the_states_the_last_two_and_those_in_use_are_kept(tmp_path):
    state, session = StateFolder(tmp_path), "0123456789abcdef"
    for step in (1, 2, 5, 8, 9):
        store = ClientStore()
        store.tensors["mask"] = torch.full((2,), float(step))
        state.save(session, step, store, keep=[2])
    files = sorted(p.name for p in (tmp_path / "state" / session).iterdir())
    assert files == ["step_00000002.pt", "step_00000008.pt", "step_00000009.pt"]
    assert state.load(session, 8).tensors["mask"].tolist() == [8.0, 8.0]
    assert not state.load(session, None)
    with pytest.raises(ValueError, match="its private state of step 5 is not in"):
        state.load(session, 5)


def test_frames_are_checked():
    header, body = frames.unpack(frames.pack({"a": [1, None]}, b"\0\xff"))
    assert (header, body) == ({"a": [1, None]}, b"\0\xff")
    for wrong in (b"", b"123", frames.LENGTH.pack(99) + b"{}", frames.pack({})[:8] + b"[]"):
        with pytest.raises(ValueError):
            frames.unpack(wrong)


def test_bits_names_shapes_and_dtypes_are_in_the_hash():
    hashes = {tensors_sha256(t) for t in (
        {"a": torch.zeros(2)}, {"b": torch.zeros(2)}, {"a": torch.zeros(2, 1)}, {"a": torch.zeros(2, dtype=torch.int32)},
        {"a": torch.tensor([0.0, -0.0])}, {"a": torch.zeros(0)}, {"a": torch.zeros(())},
        {"a": torch.zeros(2, dtype=torch.bfloat16)})}  # fmt: skip
    assert len(hashes) == 8
    assert tensors_sha256({"a": torch.arange(4.0)[::2]}) == tensors_sha256({"a": torch.tensor([0.0, 2.0])})


def test_refusals_of_a_supernode_are_understood(monkeypatch):
    monkeypatch.syspath_prepend(str(children.HERE))  # as the script finds its neighbours
    import run_site

    assert run_site.refusal("... [SSL: CERTIFICATE_VERIFY_FAILED] ...")[0] == "CERTIFICATE_VERIFY_FAILED"
    assert run_site.refusal("INFO connected, node 2004 ms") is None
