"""Which runs can be summed securely: what a coordinator knows of silos, and what it may not need to know.

A run is rehearsed with stand-ins. Whatever the server, the plan or the clock would make of the number of a
silo's rows shows when that number is another one.
"""

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.around import innermost
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Epochs, Exchange, ServerState
from idiolect.data.preprocessing import Preprocessing
from idiolect.engines.engine import Setting
from idiolect.engines.local_view import stand_in
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan, Uniform
from idiolect.runs.config import RunConfig
from idiolect.runs.setup import build_setting
from idiolect.silo.rehearsal import rehearsed_upload
from idiolect.silo.secure.summands import own_weight

# In place of what silos do not tell. Two rows, since some models cannot train on a single one.
UNTOLD_ROWS = {"train": 2, "validation": 1, "test": 1}
_SIZES = (torch.tensor([7, 3, 2]), torch.tensor([2, 11, 5]))  # of the stand-ins, once and once more


def require_sums(config: RunConfig, schema: Preprocessing, names: tuple[str, ...], threshold: int) -> None:
    """Refuse in one sentence what cannot be done with sums alone, of so many silos at least."""
    if config.robust is not None:
        raise UserError(
            f"robust={config.robust.name} is not possible with secure=true: a rule looks at each silo's own "
            "upload, and secure sums show nobody one"
        )
    if config.codec.up is not None:
        raise UserError("codec.up is of no use with secure=true: masked uploads cannot be compressed")
    _require_plan(config.participation.bind(names), config.seed, len(names), threshold)
    rows = pd.DataFrame(UNTOLD_ROWS, index=[f"stand-in {place}" for place in range(3)])
    setting = build_setting(config, stand_in(schema, rows))
    server = setting.found(Uniform())
    for exchange in setting.method.exchanges(server):
        _require_sum(setting, exchange, server)
    _require_same_start(setting)
    _require_same(setting, [_founded(setting, sizes) for sizes in _SIZES])


def _require_plan(plan: Plan, seed: int, clients: int, threshold: int) -> None:
    """Refuse a plan that looks at rows, draws somebody twice, or asks too few."""
    small, large = torch.full((clients,), 2), torch.arange(2, clients + 2) ** 2
    for round_number in range(3):
        one, other = (plan.cohort(seed, round_number, sizes) for sizes in (small, large))
        same = one.ids.equal(other.ids) and one.work.equal(other.work) and one.multiplicity is None
        if not same:
            raise UserError(
                "participation looks at the silos' numbers of rows, or draws one twice, and with secure=true "
                "nobody knows them: choose sampling=uniform and another law of work than size"
            )
        if len(one.work.unique()) > 1:
            raise UserError(
                f"participation asks silos for different parts of their work in round {round_number + 1}: "
                "with secure=true all are asked the same, since who alone works would be seen in the sum; "
                "choose work as a number"
            )
        if len(one) < threshold:
            raise UserError(
                f"participation asks {len(one)} silos in round {round_number + 1}, and a secure sum needs "
                f"{threshold} (secure.threshold)"
            )


def _require_sum(setting: Setting, exchange: Exchange, server: ServerState) -> None:
    """Refuse an exchange whose server needs more than a weighted mean."""
    name = setting.method.name
    if isinstance(exchange.local_steps, Epochs):
        raise UserError(
            "local_steps in epochs are not possible with secure=true: the clock of rates would need the "
            "silos' numbers of rows; give local_steps as a number"
        )
    cohorts = [_cohort(exchange, sizes) for sizes in _SIZES]
    if exchange.weights(server, cohorts[0]) is None:
        raise UserError(
            f"method={name} is not possible with secure=true: its server needs each silo's own upload, and "
            "secure sums show nobody one"
        )
    client_id = torch.tensor(0)
    down = exchange.down(server, client_id[None])
    down = tree.row(down, 0) if exchange.personal_down else down
    client = tree.row(setting.states(client_id[None]), 0)
    upload = rehearsed_upload(setting, exchange, client, down, client_id, 0)
    if not tree.leaves(upload):
        return  # nothing is sent
    if not all(leaf.is_floating_point() for leaf in tree.leaves(upload)):
        raise UserError(f"method={name} is not possible with secure=true: its uploads have whole numbers")
    if not all(_weighs_by_shares(exchange, server, cohort) for cohort in cohorts):
        raise UserError(
            f"method={name} is not possible with secure=true: its weights are not in proportion to what each "
            "silo knows of itself"
        )
    mean = tree.map_tree(lambda leaf: torch.full_like(leaf, 0.5), upload)
    states = [exchange.absorb(server, mean, cohort)[0] for cohort in cohorts]
    _require_same(setting, states)


def _require_same(setting: Setting, states: list[ServerState]) -> None:
    """Refuse what is another server if silos have other numbers of rows."""
    if not all(map(torch.equal, *map(tree.leaves, states))):
        raise UserError(
            f"method={setting.method.name} with these settings is not possible with secure=true: its server "
            "looks at the silos' numbers of rows"
        )


def _require_same_start(setting: Setting) -> None:
    """Refuse a method whose clients begin differently: silos know the first state by themselves."""
    states = setting.states(torch.arange(len(setting.federation)))
    if not all(leaf.equal(leaf[:1].expand_as(leaf)) for leaf in tree.leaves(states)):
        raise UserError(
            f"method={setting.method.name} is not possible with secure=true: its clients begin with states "
            "of their own, which silos cannot check"
        )


def _founded(setting: Setting, sizes: Tensor) -> ServerState:
    population = Population(sizes, torch.ones_like(sizes, dtype=torch.bool))
    return setting.method.server_init(
        setting.objective.initial_params(), population, rng.key(setting.seed, "server")
    )


def _weighs_by_shares(exchange: Exchange, server: ServerState, cohort: Cohort) -> bool:
    """Whether the weights are those that follow from each client alone, as a silo will compute its own."""
    own = torch.tensor(
        [own_weight(exchange, cohort.select(torch.tensor([place]))) for place in range(len(cohort))],
        dtype=torch.float64,
    )
    weights = innermost(exchange).weights(getattr(server, "inner", server), cohort)
    return weights is not None and torch.allclose(weights, own / own.sum())


def _cohort(exchange: Exchange, sizes: Tensor) -> Cohort:
    ones = torch.ones(len(sizes), dtype=torch.float64)
    return Cohort(
        ids=torch.arange(len(sizes)),
        work=ones,
        replied=ones.bool(),
        inclusion=ones,
        population=Population(sizes, ones.bool()),
        local_steps=torch.full_like(sizes, int(exchange.local_steps)),  # type: ignore[arg-type]  # no epochs
    )
