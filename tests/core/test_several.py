"""Models of several architectures: what of them is used, and who may have them."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from idiolect.core import Batch, Objective, Task, tree
from idiolect.core.several import ARCHITECTURE, Several
from idiolect.errors import UserError
from idiolect.methods.catalogue import CATALOGUE
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedproto import FedProto
from idiolect.methods.local import Local
from idiolect.simulation import Simulation
from idiolect.testing import uneven_classification

DATA = uneven_classification()
ROWS = Batch(DATA.inputs[:6], DATA.targets[:6], torch.full((6,), 1 / 6).double(), torch.tensor(0))


def pair() -> Several:
    torch.manual_seed(2)
    one = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    other = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.Linear(5, 3))
    return Several([one, other]).double()


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def poisoned(architecture: int, value: float) -> dict[str, torch.Tensor]:
    """Parameters in which the other body is of no use."""
    params = Objective(pair(), DATA.task).initial_params()
    other = f"bodies.{1 - architecture}."
    return {n: torch.full_like(p, value) if n.startswith(other) else p for n, p in params.items()}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e300])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_nothing_of_a_body_that_is_not_used_is_seen(value: float, decay: float) -> None:
    for architecture in (0, 1):
        objective = Objective(pair(), DATA.task, decay, clip=0.01)
        mine = objective.with_architecture(torch.tensor(architecture))
        clean = mine.gradient(objective.initial_params(), ROWS)
        dirty = mine.gradient(poisoned(architecture, value), ROWS)
        for name, slope in dirty.items():
            used = not name.startswith(f"bodies.{1 - architecture}.")
            assert torch.equal(slope, clean[name])
            assert bool(slope.any()) == used, name
        predictor = {**poisoned(architecture, value), ARCHITECTURE: torch.tensor(architecture)}
        alone = pair().alone(architecture)
        assert torch.equal(objective.predict(predictor, ROWS.inputs), alone(ROWS.inputs))
        assert mine.loss(poisoned(architecture, value), ROWS).isfinite()


def test_a_stack_of_clients_has_architectures_of_their_own() -> None:
    objective = Objective(pair(), DATA.task, 0.1)
    params = tree.stack([poisoned(0, torch.nan), poisoned(1, torch.nan)])

    def slopes(w: dict[str, torch.Tensor], architecture: torch.Tensor) -> dict[str, torch.Tensor]:
        return objective.with_architecture(architecture).gradient(w, ROWS)

    stacked = vmap(slopes)(params, torch.tensor([0, 1]))
    for place in (0, 1):
        alone = slopes(tree.row(params, place), torch.tensor(place))
        for name, value in tree.row(stacked, place).items():
            torch.testing.assert_close(value, alone[name], rtol=1e-12, atol=1e-14)


def test_one_of_the_models_can_be_had_alone() -> None:
    both = pair()
    for number in (0, 1):
        both.architecture.fill_(number)
        alone = both.alone(number)
        assert torch.equal(alone(DATA.inputs), both(DATA.inputs))
        assert list(dict(alone.named_children())) == [str(place) for place in range(3 + number)]
    assert type(Several([nn.Linear(4, 3)]).alone(0)) is nn.Linear


def test_models_that_are_put_together_stay_as_they_are() -> None:
    one = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    before = one(DATA.inputs.float())
    twice = Several([one, one])
    assert torch.equal(one(DATA.inputs.float()), before)
    assert len(list(twice.parameters())) == 2 * 2 + 2


def test_methods_that_combine_parameters_refuse_them() -> None:
    for method in (FedAvg(), Ditto()):
        with pytest.raises(UserError, match=f"^method={method.name} combines parameters of clients' models"):
            Simulation(method, pair(), DATA, dtype=torch.float64)
    for kind in (Local, FedProto):
        Simulation(kind(), pair(), DATA, dtype=torch.float64)
    assert {name for name, kind in CATALOGUE.built_in.items() if kind.models_may_differ} == {
        "local",
        "fedproto",
    }


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ([], "needs at least one model"),
        ([nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))], "the last layer of Sequential is a LayerNorm"),
        (
            [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))],
            "layers of one size.*in_features=5",
        ),
        ([nn.Linear(4, 3), nn.Linear(4, 3, bias=False)], "layers of one size.*bias=False"),
        ([tied()], "shares its weight with another layer"),
    ],
)
def test_models_that_do_not_go_together_are_refused(models: list[nn.Module], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Several(models)


def test_a_model_that_goes_on_after_its_last_layer_is_refused() -> None:
    late = Several([nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.LogSoftmax(1))])
    with pytest.raises(
        UserError, match="the model Sequential, one of several, goes on after its last layer '1'"
    ):
        Simulation(Local(), late, DATA, dtype=torch.float64)


def test_statistics_stay_with_clients() -> None:
    torch.manual_seed(1)
    normalised = Several(
        [
            nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        ]
    ).double()
    with pytest.raises(
        UserError, match="statistics=average is not possible where clients' architectures differ"
    ):
        Simulation(FedProto(), normalised, DATA, dtype=torch.float64, statistics="average")
    method, settings = Local(local_steps=3), {"dtype": torch.float64, "batch_size": 4}
    alone = Simulation(method, normalised.alone(0), DATA, **settings).play(3)
    together = Simulation(method, normalised, DATA, **settings).play(3)
    inputs = DATA.inputs[:5]
    for client in (0, 2, 4):
        said = [
            each.engine.setting.objective.predict(each.predictor(client)["personal"], inputs)
            for each in (alone, together)
        ]
        torch.testing.assert_close(said[0], said[1], rtol=1e-11, atol=1e-12)
    assert len(together.newcomers(DATA).predictors()["personal"][ARCHITECTURE]) == len(DATA)


def test_a_model_may_have_a_parameter_of_that_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.architecture = nn.Parameter(torch.ones(4, 3).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.architecture

    objective = Objective(Named(), Task("multiclass", 3))
    assert torch.equal(objective.predict(objective.initial_params(), DATA.inputs), Named()(DATA.inputs))
