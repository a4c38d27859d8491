"""Optional run trackers: TensorBoard and MLflow get every evaluation's mean values as it happens.

A tracker is anything with `log` and `close`; the libraries come with `pip install 'idiolect[trackers]'`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from idiolect.errors import UserError

TrackerName = Literal["tensorboard", "mlflow"]


class Tracker(Protocol):
    """Takes numbers by name, round after round."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take the values of a round."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self, folder: Path, first_round: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        # A resumed run repeats the rounds since its checkpoint; what was logged of them is dropped.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_round)

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take the values of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_number)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MLflow:
    """A run of MLflow named after the folder, where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, first_round: int) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise _missing("mlflow") from error
        self._mlflow = mlflow
        mlflow.start_run(run_name=folder.name)

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take the values of a round."""
        self._mlflow.log_metrics(dict(values), step=round_number)

    def close(self) -> None:
        """End MLflow's run."""
        self._mlflow.end_run()


def open_trackers(names: Sequence[TrackerName], folder: Path, first_round: int) -> list[Tracker]:
    """The trackers of a run that starts, or goes on, with a round."""
    kinds: dict[TrackerName, type[TensorBoard | MLflow]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
    return [kinds[name](folder, first_round) for name in names]


def _missing(name: str) -> UserError:
    return UserError(f"the tracker {name} is not installed: pip install 'idiolect[trackers]'")
