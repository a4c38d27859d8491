"""Federations as scikit-learn's estimators: its checks, its answers, and each row by its client's model."""

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import idiolect
from idiolect import FederatedClassifier, FederatedRegressor, UserError

pytestmark = [  # few rounds are told of
    pytest.mark.filterwarnings("ignore:still improving:sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:untrained:sklearn.exceptions.ConvergenceWarning"),
]

SITES = np.repeat(["north", "south", "west"], [60, 25, 40])
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(125, 3)) * [1.0, 4.0, 0.1] + [0.5, -2.0, 0.0]
NUMBERS = X @ [2.0, -0.3, 1.0] + np.where(SITES == "west", 3 - X[:, 0] * 3, 0) + DRAW.normal(size=125) / 2
CLASSES = np.where(NUMBERS > 1.5, "over", "below")
# West's answers are the others' turned round in the first feature: a shared model cannot have both.
OPPOSED = np.where((X[:, 0] > 0.5) ^ (SITES == "west"), "over", "below")


# None is expected to fail.
@parametrize_with_checks([FederatedClassifier(rounds=5), FederatedRegressor(rounds=5)])
@pytest.mark.filterwarnings("ignore")  # scikit-learn's data are odd, and five rounds are few
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


FULL_STEPS: dict[str, Any] = {
    "local_steps": 1,
    "method.weighting": "samples",
    "batch_size": "all",
    "dtype": "float64",
    "weight_decay": 0.3,
    "evaluate_every": 100,
}


def test_fedavg_with_one_full_step_is_scikit_learns_logistic_regression() -> None:
    estimator = FederatedClassifier(
        "fedavg", kind="global", rounds=100, validation_fraction=0, settings=FULL_STEPS
    ).fit(X, CLASSES, groups=SITES)
    rows = np.column_stack([StandardScaler().fit_transform(X), np.ones(len(X))])  # the bias is penalised too
    theirs = LogisticRegression(C=1 / (0.3 * len(X)), fit_intercept=False, tol=1e-10).fit(rows, CLASSES)
    layer = estimator.model_for().module.linear
    ours = torch.cat([layer.weight[0], layer.bias]).detach().numpy()
    np.testing.assert_allclose(ours, theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(estimator.predict_proba(X), theirs.predict_proba(rows), atol=1e-5)
    assert estimator.predict(X).tolist() == theirs.predict(rows).tolist()


def test_fedavg_with_one_full_step_is_scikit_learns_ridge_regression() -> None:
    estimator = FederatedRegressor(
        "fedavg", kind="global", rounds=100, validation_fraction=0, settings=FULL_STEPS
    ).fit(X, NUMBERS, groups=SITES)
    rows = np.column_stack([StandardScaler().fit_transform(X), np.ones(len(X))])
    mean, scale = NUMBERS.mean(), NUMBERS.std()
    theirs = Ridge(alpha=0.3 * len(X), fit_intercept=False).fit(rows, (NUMBERS - mean) / scale)
    np.testing.assert_allclose(estimator.predict(X), theirs.predict(rows) * scale + mean, atol=1e-5)
    assert estimator.score(X, NUMBERS) == pytest.approx(theirs.score(rows, (NUMBERS - mean) / scale))


def test_each_client_has_the_predictions_of_train_on_the_same_table() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(colour=np.where(X[:, 1] > 0, "red", "blue"))
    frame.loc[::7, "a"] = np.nan
    estimator = FederatedClassifier(
        "ditto", rounds=3, seed=5, settings={"data.missing": "indicate", "method.proximal": 0.3, "lr": 0.2}
    ).fit(frame, CLASSES, groups=SITES)
    table = {"name": frame.assign(site=SITES, y=CLASSES), "client": "site", "target": "y"}
    table |= {"missing": "indicate", "fractions": (0.8, 0.2, 0.0)}
    result = idiolect.train("ditto", table, rounds=3, seed=5, lr=0.2, **{"method.proximal": 0.3})
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c", "colour"]
    assert estimator.clients_.tolist() == ["north", "south", "west"]
    probabilities, answers = estimator.predict_proba(frame, groups=SITES), estimator.predict(frame, SITES)
    for client in ("north", "south", "west"):
        own = client == SITES
        assert answers[own].tolist() == result.predict(client, frame[own])
        np.testing.assert_allclose(
            probabilities[own], result.predict_proba(client, frame[own]).to_numpy(), atol=1e-6
        )
        assert estimator.model_for(client).predict(frame[own]).tolist() == answers[own].tolist()
    # Not one model for all.
    assert np.abs(probabilities - estimator.predict_proba(frame, groups=SITES[::-1])).max() > 0.01


def test_rows_of_nobody_and_of_newcomers_have_the_shared_model() -> None:
    estimator = FederatedClassifier("apfl", rounds=20, settings={"method.mixing": 1.0})
    estimator.fit(X, OPPOSED, groups=SITES)
    shared = estimator.predict_proba(X)
    result = estimator.result_.predict_proba("south", _named(X), "global").to_numpy()
    np.testing.assert_allclose(shared, result, atol=1e-6)
    groups = np.where(SITES == "west", "elsewhere", SITES)
    mixed = estimator.predict_proba(X, groups=groups)
    np.testing.assert_array_equal(mixed[SITES == "west"], shared[SITES == "west"])
    own = estimator.predict_proba(X, groups=SITES)
    np.testing.assert_array_equal(mixed[SITES != "west"], own[SITES != "west"])
    assert estimator.score(X, OPPOSED, groups=SITES) > 0.95 > estimator.score(X, OPPOSED) + 0.1


def test_without_a_shared_model_one_has_to_say_whose_rows_they_are() -> None:
    estimator = FederatedRegressor("local", rounds=2).fit(X, NUMBERS, groups=SITES)
    with pytest.raises(UserError, match=r"groups is missing, .*: local has no shared model, .* 'north', 'so"):
        estimator.predict(X)
    with pytest.raises(UserError, match=r"no client 'nort' \(did you mean north\?\): local has no shared mo"):
        estimator.predict(X[:1], groups=["nort"])
    with pytest.raises(UserError, match="X has no rows"):
        estimator.predict(_named(X[:0]), groups=[])
    alone = FederatedRegressor("local", rounds=2).fit(X, NUMBERS)
    assert alone.clients_.tolist() == ["everybody"]
    np.testing.assert_array_equal(alone.predict(X), alone.predict(X, groups=["everybody"] * len(X)))


@pytest.mark.parametrize(
    "kind_of_groups",
    [lambda codes: codes, lambda codes: codes.astype(float), list, lambda codes: pd.Series(codes, name="g"),
     lambda codes: pd.Categorical(codes), lambda codes: np.char.add(" ", codes.astype(str))],
    ids=["int", "float", "list", "series", "categorical", "texts with spaces"],
)  # fmt: skip
def test_groups_may_be_numbers_or_texts_of_any_kind(kind_of_groups: Any) -> None:
    codes = np.array([10, 2, 7])[np.unique(SITES, return_inverse=True)[1]]
    estimator = FederatedRegressor("local", rounds=2).fit(X, NUMBERS, groups=kind_of_groups(codes))
    assert sorted(estimator.clients_, key=int) == ["2", "7", "10"]
    expected = FederatedRegressor("local", rounds=2).fit(X, NUMBERS, groups=codes).predict(X, groups=codes)
    np.testing.assert_allclose(estimator.predict(X, groups=kind_of_groups(codes)), expected, rtol=1e-9)


def test_a_client_with_one_row_trains_on_it_and_without_validation_rows_the_last_round_is_taken() -> None:
    groups = np.where(np.arange(len(X)) == 9, "tiny", SITES)
    estimator = FederatedRegressor("fedavg", rounds=7).fit(X, NUMBERS, groups=groups)
    federation = estimator.result_.simulation.federation
    tiny = federation.names.index("tiny")
    assert federation.train.of(tiny).tolist() == [9]
    assert federation.validation.sizes[tiny] == 0
    assert federation.validation.sizes.sum() == 11 + 5 + 8  # a fifth of 59, 25 and 40 rows
    last = FederatedRegressor("fedavg", rounds=7, validation_fraction=0).fit(X, NUMBERS, groups=groups)
    assert last.result_.simulation.round == 7
    assert last.result_.simulation.federation.validation.sizes.sum() == 0


def test_classes_keep_their_kind_and_their_order() -> None:
    for classes in (np.array([2, 10]), np.array([" b", "a"], dtype=object), np.array([-1.0, 1.0])):
        y = classes[(CLASSES == "over").astype(int)]
        estimator = FederatedClassifier("local", rounds=10).fit(X, y)
        assert estimator.classes_.tolist() == sorted(classes)
        assert estimator.score(X, y) > 0.75
        chosen = estimator.classes_[estimator.predict_proba(X).argmax(1)]
        assert chosen.tolist() == estimator.predict(X).tolist()
        above = estimator.classes_[(estimator.decision_function(X) > 0).astype(int)]
        assert above.tolist() == chosen.tolist()


def test_a_threshold_moves_predictions_and_not_probabilities() -> None:
    estimator = FederatedClassifier("local", rounds=5, settings={"evaluation.threshold": 0.2})
    estimator.fit(X, CLASSES, groups=SITES)
    expected = np.where(estimator.predict_proba(X, SITES)[:, 1] > 0.2, "over", "below")
    assert estimator.predict(X, SITES).tolist() == expected.tolist()
    assert ((estimator.decision_function(X, SITES) > 0) == (expected == "over")).all()
    assert (expected == "over").sum() > (estimator.predict_proba(X, SITES)[:, 1] > 0.5).sum()


def test_groups_are_routed_through_cross_validation_and_pipelines() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = FederatedClassifier("apfl", rounds=10, settings={"method.mixing": 1.0})
        estimator.set_fit_request(groups=True).set_predict_request(groups=True)
        estimator.set_score_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), estimator)
        folds = KFold(3, shuffle=True, random_state=0)
        scores = cross_validate(pipeline, X, OPPOSED, params={"groups": SITES}, cv=folds)["test_score"]
        # By scikit-learn's own splits: each fold again by hand.
        for score, (fitted, held) in zip(scores, folds.split(X), strict=True):
            again = clone(pipeline).fit(X[fitted], OPPOSED[fitted], groups=SITES[fitted])
            answers = again.predict(X[held], groups=SITES[held])
            assert score == (answers == OPPOSED[held]).mean() > 0.8
        # Whole clients held out: only the shared model is left to predict them.
        unseen = cross_validate(pipeline, X, OPPOSED, params={"groups": SITES}, cv=GroupKFold(3))
        assert unseen["test_score"].mean() < scores.mean() - 0.2


def test_a_grid_search_chooses_method_and_settings() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = FederatedClassifier(rounds=5, settings={"lr": 0.5})
        estimator.set_fit_request(groups=True).set_score_request(groups=True)
        grid = {"method": ["fedavg", "local"], "kind": [None], "settings": [{"lr": 1e-6}, {"lr": 0.5}]}
        grid["validation_fraction"] = [0]  # else no round of a tiny rate may be better than none
        search = GridSearchCV(estimator, grid, cv=KFold(2, shuffle=True, random_state=1), error_score="raise")
        search.fit(X, OPPOSED, groups=SITES)
        score = search.score(X, OPPOSED, groups=SITES)
    assert search.best_params_["method"] == "local"
    assert search.best_params_["settings"] == {"lr": 0.5}
    assert score == search.best_estimator_.score(X, OPPOSED, groups=SITES) > 0.8


def test_a_pickle_has_the_models_and_nobodys_rows() -> None:
    estimator = FederatedClassifier("apfl", "mlp", rounds=2, settings={"model.hidden": [5]})
    estimator.fit(X, CLASSES, groups=SITES)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict_proba(X, SITES), estimator.predict_proba(X, SITES))
    assert not hasattr(again, "result_")
    rows = estimator.result_.simulation.federation.inputs.numpy().tobytes()
    assert rows not in pickle.dumps(estimator)


def test_objects_are_left_as_they_were_given() -> None:
    module = torch.nn.Linear(3, 1)
    before = module.weight.detach().clone()
    method = idiolect.method("fedavg", local_steps=2, learning_rate=0.1)
    estimator = FederatedRegressor(method, module, rounds=2, settings={"dtype": "float64"})
    table = pd.DataFrame(X, columns=list("abc"))
    kept = table.copy()
    estimator.fit(table, NUMBERS, groups=SITES)
    assert module.weight.dtype == torch.float32
    assert torch.equal(module.weight, before)
    pd.testing.assert_frame_equal(table, kept)
    again = clone(estimator).fit(table, NUMBERS, groups=SITES)
    np.testing.assert_array_equal(again.predict(table, SITES), estimator.predict(table, SITES))


def test_a_training_that_diverges_is_said_and_predicts_nothing() -> None:
    estimator = FederatedRegressor("local", rounds=60, validation_fraction=0.3, settings={"lr": 1e3})
    with pytest.warns(ConvergenceWarning, match="diverged"):
        estimator.set_params(settings={"lr": 1e3, "choose": "last"}).fit(X, NUMBERS, groups=SITES)
    with pytest.raises(UserError, match=r"model of client 'north' is of no use.*diverged"):
        estimator.predict(X, groups=SITES)


@pytest.mark.parametrize(
    ("parameters", "groups", "sentence"),
    [
        ({"settings": {"rounds": 3}}, SITES, "settings holds rounds, which is said by rounds"),
        ({"settings": {"data": {"target": "y"}}}, SITES, "settings holds data.target, which is said by y"),
        ({"settings": {"method": "local"}}, SITES, "settings holds method.name, which is said by method"),
        ({"settings": {"leraning_rate": 3}}, SITES, "leraning_rate"),
        ({"method": "apfel"}, SITES, "did you mean apfl"),
        ({"kind": "group"}, SITES, "kind=group is not possible: the models of apfl are global, localized"),
        ({"validation_fraction": 1.0}, SITES, "validation_fraction=1.0 must be at least 0 and less than 1"),
        ({}, SITES[:9], "inconsistent numbers of samples"),
        ({}, np.where(SITES == "west", None, SITES), "'groups' has 40 missing values, the first in row 86"),
        ({}, np.where(SITES == "west", "North", SITES), "'north' and 'North' are too alike"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(parameters: dict[str, Any], groups: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        FederatedClassifier(**{"rounds": 2, **parameters}).fit(X, CLASSES, groups=groups)
    assert "\n" not in str(error.value)


def test_missing_values_in_arrays_are_refused_unless_settings_say_what_to_do() -> None:
    holes = np.where(DRAW.random(X.shape) < 0.1, np.nan, X)
    with pytest.raises(ValueError, match="NaN"):
        FederatedRegressor(rounds=2).fit(holes, NUMBERS)
    estimator = FederatedRegressor(rounds=2, settings={"data": {"missing": "impute"}}).fit(holes, NUMBERS)
    at_mean = np.where(np.isnan(holes), [c.mean for c in estimator.model_for().preprocessing.columns], holes)
    np.testing.assert_allclose(estimator.predict(holes), estimator.predict(at_mean), rtol=1e-5)


def test_marks_for_missing_values_are_read_when_predicting_as_when_fitting() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 1, "?", X[:, 1].round(2).astype(str))})
    settings = {"data.missing": "impute", "data.decimal": "point"}
    estimator = FederatedRegressor(rounds=2, settings=settings).fit(frame, NUMBERS, groups=SITES)
    numbers = frame.assign(b=pd.to_numeric(frame.b, errors="coerce"))
    plain = FederatedRegressor(rounds=2, settings=settings).fit(numbers, NUMBERS, groups=SITES)
    np.testing.assert_array_equal(estimator.predict(frame, SITES), plain.predict(numbers, SITES))


def test_scikit_learn_is_asked_for_where_it_is_missing_and_loaded_only_when_needed() -> None:
    lines = (
        "import sys, idiolect; idiolect.train; assert 'sklearn' not in sys.modules",
        "sys.modules['sklearn'] = None",
        "try: idiolect.FederatedClassifier",
        "except idiolect.UserError as error: print(error)",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert "pip install 'idiolect[sklearn]'" in done.stdout


def _named(rows: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["x0", "x1", "x2"])


def test_privacy_is_said_in_the_words_of_a_run_and_its_cost_is_told() -> None:
    def fitted(settings: dict[str, Any] | None = None) -> FederatedClassifier:
        return FederatedClassifier(
            "fedavg", rounds=3, privacy={"unit": "row", "epsilon": 2.0}, settings=settings
        ).fit(X, CLASSES, groups=SITES)

    private = fitted({"batch_size": "all", "local_steps": 2})
    assert private.privacy_["unit"] == "row"
    assert 1.9 < private.privacy_["epsilon"] <= 2.0
    # Six releases without sampling: Rényi's bound, and the exact ε of one release of less noise below it.
    noise = private.privacy_["noise"]
    assert get_epsilon_gaussian(noise / 6**0.5, 0.99e-5) < private.privacy_["epsilon"]
    again = pickle.loads(pickle.dumps(private))
    assert again.privacy_ == private.privacy_
    assert clone(private).privacy == {"unit": "row", "epsilon": 2.0}
    assert FederatedClassifier("fedavg", rounds=3).fit(X, CLASSES, groups=SITES).privacy_ is None
    with pytest.raises(UserError, match="settings holds privacy, which is said by privacy"):
        fitted({"privacy.noise": 1.0})
    with pytest.raises(UserError, match=r"privacy.unit=person is not possible: it must be row or silo"):
        FederatedRegressor(privacy={"unit": "person", "epsilon": 1}).fit(X, NUMBERS, groups=SITES)


def test_spending_privacy_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "still improving|untrained")
        FederatedRegressor("fedavg", rounds=2, privacy={"unit": "row", "noise": 1.0}).fit(X, NUMBERS, SITES)
