"""What holds in every test process: one thread, and no waiting for disks."""

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # two processes run side by side, and small tensors gain nothing


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """What a process wrote need not have reached the disk: who is killed here leaves the machine running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and their figures take longer than small comparisons, of which these tests look at the rest."""
    monkeypatch.setattr("idiolect.api.can_write_reports", lambda: False)
