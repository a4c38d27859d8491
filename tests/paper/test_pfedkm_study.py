"""pFedKM on three blocks of clients that share their labelling: group models gain from groups."""

import pytest
import torch
from torch import Tensor

from idiolect.core.exchange import ClientState, Message, Site
from idiolect.data.synthetic import three_clusters
from idiolect.methods.groups import adjusted_rand_index
from idiolect.methods.pfedkm import PFedKM
from idiolect.models import build_model
from idiolect.simulation import Simulation


def group_accuracy(groups: int, seed: int) -> tuple[float, float]:
    """The clients' mean test accuracy with their group's model, and the agreement with the true blocks."""
    federation = three_clusters(seed=seed, clients=30, shared_weights=True)
    method = PFedKM(groups=groups, learning_rate=0.03)
    run = Simulation(method, lambda: build_model("linear", federation), federation, seed=seed).play(12)

    def look(client: ClientState, brief: Message, site: Site) -> Tensor:
        model = run.method.predictors(client, brief)["group"]
        right = site.objective.task.decide(site.objective.predict(model, site.all_rows.inputs))
        return ((right == site.all_rows.targets) * site.all_rows.weights).sum()

    assert federation.groups is not None
    found = adjusted_rand_index(run.server.labels, federation.groups)
    return float(run.survey(look, federation.test).mean()), float(found)


@pytest.mark.slow
def test_three_groups_beat_one_on_three_blocks() -> None:
    with_three, with_one = ([group_accuracy(groups, seed) for seed in range(3)] for groups in (3, 1))
    gain = torch.tensor(with_three)[:, 0] - torch.tensor(with_one)[:, 0]
    assert (gain > 0).all()
    assert gain.mean() > 0.05
    assert torch.tensor(with_three)[:, 1].mean() > 0.1, "labels are nearer to the blocks than chance"
