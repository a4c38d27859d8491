import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from idiolect.core.parts import last_layer
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError
from idiolect.models import build_model, outline_model
from idiolect.models.adapters import AdapterSettings, add_adapters, merge_adapters


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


def series():
    x = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))
    return federation(x, torch.tensor([0, 1, 1, 0, 1, 0]), Task("binary", 1))


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
    "cnn4": ("cnn4", images(1, 28), {"filters": (3, 4), "hidden": 8}),
    "lenet on 28": ("lenet", images(1, 28), {}),
    "lenet on 32": ("lenet", images(3, 32), {}),
    "resnet": ("resnet", images(3, 8), {"depth": 10, "width": 3}),
    "gru of codes": ("gru", text(), {"hidden": 6, "layers": 2, "embedding": 4}),
    "gru of numbers": ("gru", series(), {"hidden": 5}),
    "bag": ("bag", text(), {"embedding": 5}),
    "bag with padding": ("bag", text(), {"embedding": 5, "padding": 2}),
    "transformer": ("transformer", text(), {"size": 6, "heads": 2, "hidden": 5}),
    "transformer with padding": ("transformer", text(), {"size": 4, "heads": 2, "hidden": 5, "padding": 2}),
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
        written_out = vmap(ours)(data.inputs[:, None])[:, 0]  # as torch's kernel cannot be taken there
        for outputs in (ours(data.inputs), written_out):
            assert torch.allclose(outputs, ours.output(states[:, -1]), atol=1e-6)


def test_char_lstm_with_adapters_is_the_one_into_which_they_are_merged():
    """Torch's kernel would take the weights and leave adapters out."""
    data = text()
    ours = add_adapters(build_model("char-lstm", data, hidden=5, layers=2), AdapterSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if "adapter" in name:
                parameter.add_(0.3)
        outputs = ours(data.inputs)
        assert torch.allclose(outputs, merge_adapters(ours)(data.inputs), atol=1e-6)


def test_gru_agrees_with_torchs_own():
    data = text()
    ours = build_model("gru", data, hidden=5, layers=2, embedding=8)
    theirs = nn.GRU(8, 5, num_layers=2, batch_first=True)
    with torch.no_grad():
        for layer in range(2):
            getattr(theirs, f"weight_ih_l{layer}").copy_(ours.input_maps[layer].weight)
            getattr(theirs, f"weight_hh_l{layer}").copy_(ours.state_maps[layer].weight)
            getattr(theirs, f"bias_ih_l{layer}").copy_(ours.input_maps[layer].bias)
            getattr(theirs, f"bias_hh_l{layer}").copy_(ours.state_maps[layer].bias)
        states, _ = theirs(ours.embedding(data.inputs))
        assert torch.allclose(ours(data.inputs), ours.output(states[:, -1]), atol=1e-6)


def test_transformer_agrees_with_torchs_own():
    data, padding = text(), 2
    ours = build_model("transformer", data, size=6, heads=2, hidden=5, padding=padding)
    layer = nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, 2, norm=ours.norm, enable_nested_tensor=False)
    with torch.no_grad():
        for own, other in zip(ours.layers, theirs.layers, strict=True):
            other.self_attn.in_proj_weight.copy_(own.queries_keys_values.weight)
            other.self_attn.in_proj_bias.copy_(own.queries_keys_values.bias)
            other.self_attn.out_proj.load_state_dict(own.attended.state_dict())
            other.linear1.load_state_dict(own.hidden.state_dict())
            other.linear2.load_state_dict(own.dense.state_dict())
            other.norm1.load_state_dict(own.attention_norm.state_dict())
            other.norm2.load_state_dict(own.dense_norm.state_dict())
        codes = data.inputs.clone()
        codes[0, 3:] = padding
        is_word = codes != padding
        states = theirs(ours.embedding(codes) + ours.positions, src_key_padding_mask=~is_word)
        means = torch.stack([row[words].mean(0) for row, words in zip(states, is_word, strict=True)])
        assert torch.allclose(ours(codes), ours.output(means), atol=1e-6)


def test_bag_agrees_with_torchs_own_and_padding_counts_for_nothing():
    data, padding = text(), 2
    ours = build_model("bag", data, embedding=5, padding=padding)
    theirs = nn.EmbeddingBag.from_pretrained(ours.embedding.weight, padding_idx=padding)
    codes = data.inputs.clone()
    codes[0], codes[1, 3:] = padding, padding
    assert torch.allclose(ours(codes), ours.output(theirs(codes)), atol=1e-6)
    assert torch.allclose(ours(codes)[0], ours.output.bias)
    assert build_model("transformer", data, padding=padding)(codes).isfinite().all()


@pytest.mark.parametrize("case", CASES)
def test_the_head_is_the_last_layer(case):
    name, data, options = CASES[case]
    names = [n for n, _ in build_model(name, data, **options).named_parameters()]
    assert {n.rpartition(".")[0] for n in last_layer(names)} == {
        {"linear": "linear", "quadratic": ""}.get(name, "output")
    }


def test_sizes_are_the_papers():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(build_model("cnn", images(3, 32))) == (
        (3 * 25 + 1) * 20 + (20 * 25 + 1) * 50 + (1250 + 1) * 512 + 513 * 3
    )
    assert count(build_model("mlp", images(1, 28))) == 785 * 200 + 201 * 200 + 201 * 3
    assert count(build_model("dnn", images(1, 28))) == 785 * 128 + 129 * 3
    # PFLlib's FedAvgCNN has 582,026 parameters for ten classes on MNIST.
    assert count(build_model("cnn4", images(1, 28))) == 582_026 - 7 * 513
    assert count(build_model("lenet", images(1, 28))) == 61_706 - 7 * 85
    # ResNet-18 for CIFAR-10: 11,173,962 parameters, whichever normalisation.
    assert count(build_model("resnet", images(3, 32))) == 11_173_962 - 7 * 513
    assert count(build_model("resnet", images(3, 32), depth=34, norm="batch")) == 21_282_122 - 7 * 513
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
        ("cnn4", images(1, 12), {}, "cnn4 needs images .* at least 16 x 16"),
        ("lenet", plane(), {}, "lenet needs images"),
        ("lenet", images(1, 8), {}, "at least 12 x 12"),
        ("resnet", text(), {}, "resnet needs images"),
        ("resnet", images(3, 8), {"depth": 50}, "depth=50 must be 10, 18 or 34"),
        ("resnet", images(3, 8), {"norm": "layer"}, "norm=layer group or batch"),
        ("resnet", images(3, 8), {"width": 0}, "width=0 must be at least 1"),
        ("gru", plane(), {}, r"not rows of shape \(2,\)"),
        ("gru", series(), {"layers": 0}, "layers=0"),
        ("bag", plane(), {}, r"bag needs sequences .* type float32"),
        ("transformer", plane(), {}, "transformer needs sequences"),
        ("transformer", text(), {"size": 6, "heads": 4}, "size=6 must be a multiple of heads=4"),
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


def test_several_have_an_outline_and_first_numbers_of_the_seed():
    options = {"models": [{"name": "dnn", "hidden": 5}, {"name": "mlp", "hidden": [4, 5]}]}
    model, again = (build_model("several", images(1, 28), seed=3, **options) for _ in range(2))
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    outline = outline_model("several", images(1, 28), **options)
    assert all(parameter.is_meta for parameter in outline.parameters())
    assert [p.shape for p in outline.parameters()] == [p.shape for p in model.parameters()]


def test_an_outline_takes_no_memory():
    enormous = outline_model("mlp", plane(), hidden=[10**6, 10**6])
    assert sum(parameter.numel() for parameter in enormous.parameters()) > 10**12
