"""`fit(X, y, groups=clients)`, and predictions for each row by the model of its client.

>>> import numpy as np
>>> draw = np.random.default_rng(0)
>>> X, site = draw.normal(size=(90, 2)), np.repeat(["north", "south", "west"], 30)
>>> y = np.where(X[:, 0] * np.where(site == "west", -1, 1) > 0.2, "high", "low")
>>> estimator = FederatedClassifier("apfl", rounds=20, settings={"method.mixing": 0.75})
>>> estimator = estimator.fit(X, y, groups=site)
>>> [estimator.predict([[2.0, 0.0]], groups=[client]).item() for client in ("north", "west")]
['high', 'low']
>>> bool(estimator.score(X, y, groups=site) > 0.9)
True
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.api import train
from idiolect.core.method import Method
from idiolect.data.preprocessing import as_text
from idiolect.data.reading import Reading, read_frame
from idiolect.data.tables import client_ids
from idiolect.errors import UserError
from idiolect.estimators.fitted_models import FittedModels
from idiolect.runs.personal_model import PersonalModel
from idiolect.runs.settings import Settings, merge, read_settings

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        assert_all_finite,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError:
    raise UserError(
        "the estimators need scikit-learn 1.8 or later: pip install 'idiolect[sklearn]'"
    ) from None

ONE_CLIENT = "everybody"  # whose rows they are where `groups` does not say
# What `settings` may not hold, and where it is said instead.
_SAID_ELSEWHERE = {
    ("method", "name"): "method",
    ("model", "name"): "model",
    ("seed",): "seed",
    ("rounds",): "rounds",
    ("privacy",): "privacy",
    ("data", "fractions"): "validation_fraction",
    ("data", "name"): "X",
    ("data", "target"): "y",
    ("data", "client"): "groups",
    ("data", "task"): "the class of the estimator",
}


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: a table of X, y and groups, trained by `idiolect.train`."""

    _task: str

    def __init__(
        self,
        method: str | Method = "apfl",
        model: str | nn.Module | Callable[[], nn.Module] = "linear",
        *,
        rounds: int | None = None,
        kind: str | None = None,
        validation_fraction: float = 0.2,
        privacy: Mapping[str, Any] | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.kind = kind
        self.validation_fraction = validation_fraction
        self.privacy = privacy
        self.seed = seed
        self.settings = settings

    def model_for(self, client: Any = None) -> PersonalModel:
        """The model that predicts a client's rows; None: rows without `groups`."""
        check_is_fitted(self)
        name = None if client is None else _client_names([client])[0]
        return self._models.of(name)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the models, and not the training with everybody's rows."""
        return {name: value for name, value in super().__getstate__().items() if name != "result_"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_missing_values
        return tags

    @property
    def _takes_missing_values(self) -> bool:
        return read_settings([self.settings or {}]).get("data", {}).get("missing", "refuse") != "refuse"

    def _fit(self, X: Any, targets: "pd.Series[Any]", groups: Any) -> None:
        is_frame = isinstance(X, pd.DataFrame)
        table = self._table(X, reset=True)
        check_consistent_length(table, targets)
        client, target = _free_names(table, "groups", str(targets.name or "y"))
        if not 0 <= self.validation_fraction < 1:
            raise UserError(
                f"validation_fraction={self.validation_fraction} must be at least 0 and less than 1"
            )
        data: dict[str, Any] = {
            "name": table.assign(**{client: _groups(groups, len(table)), target: targets.to_numpy()}),
            "client": client,
            "target": target,
            "task": self._task,
            "fractions": (1 - self.validation_fraction, self.validation_fraction, 0.0),
            "too_few": "train",
        }
        if not is_frame:  # no column of an array has a name that says what it is
            data["keep"] = list(table.columns)
        settings = self._settings(data)
        self.result_ = train(**settings)
        for note in self.result_.training_notes:
            warnings.warn(note, ConvergenceWarning, stacklevel=3)
        self._models = FittedModels.of_result(self.result_, self.kind)
        missing_values = self._models.preprocessing.missing_values
        self._reading = Reading(
            decimal=settings["data"].get("decimal", "auto"), missing_values=missing_values
        )
        self.clients_ = np.array(self._models.names)
        self.privacy_ = self.result_.spent

    def _settings(self, data: Mapping[str, Any]) -> Settings:
        """What `train` is told."""
        own = read_settings([self.settings or {}])
        for path, parameter in _SAID_ELSEWHERE.items():
            if _is_said(own, path):
                raise UserError(f"settings holds {'.'.join(path)}, which is said by {parameter}")
        # Training puts a module into its precision, and a parameter is to stay as it was given.
        model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model
        said = {"method": self.method, "data": data, "model": model, "seed": self.seed}
        open_if_none = {"rounds": self.rounds, "privacy": self.privacy}
        said |= {name: value for name, value in open_if_none.items() if value is not None}
        return merge(read_settings([said]), own)

    def _table(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """The rows as a table: a data frame with its columns as they are, anything else as numbers."""
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if reset:
                self._columns = [str(name).strip() for name in X.columns]
            return X.set_axis(self._columns, axis=1)
        finite = "allow-nan" if self._takes_missing_values else True
        values = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)
        if reset:
            self._columns = [f"x{i}" for i in range(values.shape[1])]
        return pd.DataFrame(values, columns=self._columns)

    def _answers(self, X: Any, groups: Any, answer: Callable[[PersonalModel, Tensor], Tensor]) -> np.ndarray:
        """What the model of each row's client says of its outputs, in the order of the rows."""
        check_is_fitted(self)
        table = read_frame(self._table(X, reset=False), self._reading).frame
        inputs = self._models.preprocessing.transform(table).to(torch.float64)
        answers: np.ndarray | None = None
        for client, rows in _by_client(groups, len(inputs)):
            model = self._models.of(client, torch.float64)
            block = answer(model, model.outputs(inputs[torch.as_tensor(rows)])).numpy()
            if answers is None:
                answers = np.empty((len(inputs), *block.shape[1:]), block.dtype)
            answers[rows] = block
        if answers is None:
            raise UserError("X has no rows; at least one is needed")
        return answers


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Classes, predicted for each row by the model of its client.

    method, model: the words of `idiolect.train`, or objects.
    rounds: None for as many as validation rows gain from.
    kind: which of the method's models predicts; None for the one that the method is judged by.
    validation_fraction: the share of each client's rows that rounds are chosen by; a client with one row
        trains on it.
    privacy: the section of `idiolect.train`, as {"unit": "row", "epsilon": 3}; None: nothing is hidden. ε
        does not cover rounds that are chosen by validation rows, nor scales and categories of columns.
    seed: of splits, initial models and batches. It is called so everywhere in Idiolect, and a fit is the same
        each time, whereas scikit-learn's random_state may be a generator that changes, or none.
    settings: whatever else `idiolect.train` takes, as {"lr": 0.1, "method.mixing": 0.5}, and the options of a
        table, as {"data.missing": "impute"}.

    After `fit` there are `classes_`, `clients_` (as texts), `n_features_in_`, `feature_names_in_` where X has
    them, `privacy_`, what a private training has spent ({"epsilon": 2.9, ..}; of others None), and `result_`,
    the `Result` of the training, which a pickle leaves out.
    """

    _task = "classification"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train; `groups` says whose row each is, and without it all are one client's."""
        name = getattr(y, "name", None)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        check_consistent_length(X, y)
        classes, codes = np.unique(y, return_inverse=True)
        names = list(as_text(pd.Series(classes)))
        if len(set(names)) < len(names):
            raise UserError(f"the classes {list(classes)} must differ by more than spaces around them")
        self._fit(X, pd.Series(classes[codes], name=name), groups)
        self.classes_ = classes
        self._places = [self._models.class_names.index(name) for name in names]
        return self

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The class of each row, by its client's model.

        Rows without `groups`, of several clients, and rows of clients that were not there in training are
        predicted by the shared model, and refused if the method has none.
        """
        numbers = self._answers(X, groups, lambda model, outputs: model.decide(outputs))
        return self.classes_[np.argsort(self._places)[numbers]]

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """The probability of each of `classes_`; whose model it is of, see `predict`."""
        shares = self._answers(X, groups, lambda model, outputs: model.task.probabilities(outputs))
        return shares[:, self._places]

    def decision_function(self, X: Any, groups: Any = None) -> np.ndarray:
        """The model's outputs: of two classes how far one is above the threshold of the second one."""
        values = self._answers(X, groups, _distances)
        return values[:, self._places] if len(self.classes_) > 2 else values * (-1.0) ** self._places[0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The accuracy over all rows."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Numbers, predicted for each row by the model of its client; parameters as of `FederatedClassifier`."""

    _task = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train; `groups` says whose row each is, and without it all are one client's."""
        name = getattr(y, "name", None)
        y = column_or_1d(y, warn=True, dtype=np.float64)
        assert_all_finite(y, input_name="y")
        check_consistent_length(X, y)
        self._fit(X, pd.Series(y, name=name), groups)
        return self

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The number of each row in y's own units; whose model it is of, see `FederatedClassifier`."""
        return self._answers(X, groups, lambda model, outputs: model.decide(outputs))

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """R² over all rows."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))


def _distances(model: PersonalModel, outputs: Tensor) -> Tensor:
    if model.task.kind != "binary":
        return outputs
    return outputs[:, 0] - math.log(model.task.threshold / (1 - model.task.threshold))


def _groups(groups: Any, rows: int) -> np.ndarray:
    """Whose row each is, as it was given."""
    if groups is None:
        return np.full(rows, ONE_CLIENT)
    check_consistent_length(np.empty(rows), groups)
    return np.asarray(column_or_1d(groups))


def _client_names(groups: Any) -> np.ndarray:
    """Whose row each is, as the federation calls them."""
    return client_ids(pd.Series(column_or_1d(groups), name="groups")).astype(str)


def _by_client(groups: Any, rows: int) -> Iterator[tuple[str | None, np.ndarray]]:
    """Clients and their rows; without groups all rows are nobody's."""
    if groups is None:
        yield None, np.arange(rows)
        return
    check_consistent_length(np.empty(rows), groups)
    clients, owners = np.unique(_client_names(groups), return_inverse=True)
    for number, client in enumerate(clients):
        yield str(client), np.flatnonzero(owners == number)


def _is_said(settings: Any, path: Sequence[str]) -> bool:
    """Whether settings have a value at a place."""
    for part in path:
        if not isinstance(settings, Mapping) or part not in settings:
            return False
        settings = settings[part]
    return True


def _free_names(table: pd.DataFrame, *wanted: str) -> list[str]:
    """Names for further columns, which no column of the table has."""
    names: list[str] = []
    for name in wanted:
        while name in table.columns or name in names:
            name += "_"
        names.append(name)
    return names
