import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError
from idiolect.models import build_model, outline_model


def federation(inputs, targets, task):
    rows = Rows.of_clients([torch.arange(len(inputs))])
    return Federation(inputs, targets, task, ("only",), rows, rows, rows)


def images(channels, side):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, channels, side, side, generator=generator)
    return federation(x, torch.tensor([0, 1, 2, 0, 1, 2]), Task("multiclass", 3))


def text():
    codes = torch.randint(0, 30, (6, 7), generator=torch.Generator().manual_seed(0))
    return federation(codes, torch.tensor([1, 2, 3, 4, 29, 0]), Task("next-character", 30))


def plane():
    x = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    return federation(x, x * 2, Task("regression", 2))


CASES = {
    "linear": ("linear", images(1, 28), {}),
    "linear without bias": ("linear", plane(), {"bias": False}),
    "mlp": ("mlp", images(1, 28), {"hidden": [7, 5]}),
    "dnn": ("dnn", images(1, 28), {}),
    "cnn on 28": ("cnn", images(1, 28), {"filters": (3, 4), "hidden": 8}),
    "cnn on 32": ("cnn", images(3, 32), {"filters": (3, 4), "hidden": 8}),
    "char-lstm": ("char-lstm", text(), {"hidden": 6, "layers": 2}),
    "quadratic": ("quadratic", plane(), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_many_clients_in_one_vmap_equal_those_one_by_one(case):
    name, data, options = CASES[case]
    models = [build_model(name, data, seed=seed, **options).double() for seed in range(3)]
    generator = torch.Generator().manual_seed(1)
    for model in models:  # zero-initialised models would hide errors
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    x = data.inputs.double() if data.inputs.is_floating_point() else data.inputs
    y = data.targets.double() if data.targets.is_floating_point() else data.targets
    stacked, _ = stack_module_state(models)

    def loss(params):
        return data.task.row_losses(functional_call(models[0], params, (x,)), y).mean()

    together = vmap(grad(loss))(stacked)
    for i, model in enumerate(models):
        own = torch.autograd.grad(data.task.row_losses(model(x), y).mean(), list(model.parameters()))
        for (parameter_name, _), expected in zip(model.named_parameters(), own, strict=True):
            assert expected.abs().max() > 0
            assert torch.allclose(together[parameter_name][i], expected, rtol=1e-9, atol=1e-12)


def test_char_lstm_agrees_with_torchs_own():
    data = text()
    ours = build_model("char-lstm", data, hidden=5, layers=2)
    theirs = nn.LSTM(8, 5, num_layers=2, batch_first=True)
    with torch.no_grad():
        for layer in range(2):
            getattr(theirs, f"weight_ih_l{layer}").copy_(ours.input_maps[layer].weight)
            getattr(theirs, f"weight_hh_l{layer}").copy_(ours.state_maps[layer].weight)
            getattr(theirs, f"bias_ih_l{layer}").copy_(ours.input_maps[layer].bias)
            getattr(theirs, f"bias_hh_l{layer}").zero_()
        states, _ = theirs(ours.embedding[data.inputs])
        assert torch.allclose(ours(data.inputs), ours.output(states[:, -1]), atol=1e-6)


def test_sizes_are_the_papers():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(build_model("cnn", images(3, 32))) == (
        (3 * 25 + 1) * 20 + (20 * 25 + 1) * 50 + (1250 + 1) * 512 + 513 * 3
    )
    assert count(build_model("mlp", images(1, 28))) == 785 * 200 + 201 * 200 + 201 * 3
    assert count(build_model("dnn", images(1, 28))) == 785 * 128 + 129 * 3
    assert count(build_model("char-lstm", text())) == (
        30 * 8 + 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1) + 257 * 30
    )


def test_initial_parameters_are_a_function_of_the_seed():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, again, other = (build_model("mlp", plane(), seed=s).output.weight for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(not p.any() for p in build_model("linear", plane()).parameters())


def test_the_users_own_model_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def wide(federation, width=3):\n    return nn.Linear(federation.inputs.shape[1], width)\n"
        "def broken():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert build_model("my_models:wide", plane(), width=4).weight.shape == (4, 2)
    assert build_model("torch.nn:Linear", plane(), in_features=2, out_features=2).bias.shape == (2,)
    with pytest.raises(UserError, match="gave a value of type int"):
        build_model("my_models:broken", plane())
    with pytest.raises(UserError, match="cannot be imported"):
        build_model("my_models:absent", plane())
    with pytest.raises(UserError, match="cannot be imported"):
        build_model("no_such_module_here:wide", plane())


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("liner", plane(), {}, r"model='liner' is not known \(did you mean linear"),
        ("mlp", plane(), {"hiden": (3,)}, r"no option 'hiden' \(did you mean hidden"),
        ("mlp", plane(), {"hidden": (0,)}, "hidden=\\(0,\\)"),
        ("cnn", plane(), {}, "needs images"),
        ("cnn", images(1, 28), {"filters": (3,)}, "filters="),
        ("char-lstm", plane(), {}, "character codes"),
        ("linear", text(), {}, "char-lstm"),
        ("quadratic", text(), {}, "one shape"),
    ],
)
def test_what_cannot_be_built_is_refused(name, data, options, message):
    with pytest.raises(UserError, match=message):
        build_model(name, data, **options)


@pytest.mark.parametrize("case", CASES)
def test_an_outline_has_the_shapes_of_the_model_and_no_numbers(case):
    name, data, options = CASES[case]
    outline, model = outline_model(name, data, **options), build_model(name, data, **options)
    shapes = [parameter.shape for parameter in model.parameters()]
    assert [parameter.shape for parameter in outline.parameters()] == shapes
    assert all(parameter.is_meta for parameter in outline.parameters())


def test_an_outline_takes_no_memory():
    enormous = outline_model("mlp", plane(), hidden=[10**6, 10**6])
    assert sum(parameter.numel() for parameter in enormous.parameters()) > 10**12
