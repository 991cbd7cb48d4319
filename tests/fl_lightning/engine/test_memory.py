"""Peak memory in bytes, whatever unit the system counts in."""

import resource
from types import SimpleNamespace

import pytest

from fl_lightning.engine.memory import peak_rss_bytes


@pytest.mark.parametrize(("platform", "bytes_of_3000"), [("linux", 3_072_000), ("darwin", 3000)])
def test_kilobytes_on_linux_and_bytes_on_macos(monkeypatch, platform, bytes_of_3000):
    asked = []
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("resource.getrusage", lambda who: asked.append(who) or SimpleNamespace(ru_maxrss=3000))
    assert peak_rss_bytes() == peak_rss_bytes(children=True) == bytes_of_3000
    assert asked == [resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN]


def test_this_process_takes_more_than_50_mb_and_less_than_a_terabyte():
    assert 50 * 2**20 < peak_rss_bytes() < 2**40
