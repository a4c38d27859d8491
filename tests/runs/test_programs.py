"""A model as one file: PyTorch and ONNX runtimes compute with it what the run's own model computes."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import idiolect
from idiolect.core.objective import Mixture
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.programs import export_program, write_program

ROWS = (1, 2, 7)  # the file takes any number of rows; it was made with two


def runtime(file: Path) -> Callable[[Tensor], Tensor]:
    """What others use to run the file."""
    if file.suffix == ".pt2":
        return torch.export.load(file).module()
    session = onnxruntime.InferenceSession(file)
    return lambda inputs: torch.from_numpy(session.run(["outputs"], {"inputs": inputs.numpy()})[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """APFL whose personal model mixes the outputs of two models."""
    settings = ["method=apfl", "method.mixture_of=outputs", "data=vowels", "rounds=2", "engine=sequential"]
    out = tmp_path_factory.mktemp("programs") / "run"
    return idiolect.run(*settings, out=out)


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_a_runs_model_as_a_file_computes_the_same(run: RunFolder, name: str, tmp_path: Path) -> None:
    program = runtime(export_program(run, "speaker-04", tmp_path / name))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    simulation = reported_simulation(run)
    mixture = simulation.predictor(4)["personal"]
    assert isinstance(mixture, Mixture)
    for rows in ROWS:
        inputs = simulation.federation.inputs[10 : 10 + rows]
        expected = sum(
            weight * (inputs @ member["linear.weight"].T + member["linear.bias"])
            for weight, member in zip(mixture.weights, mixture.members, strict=True)
        )
        torch.testing.assert_close(program(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_images_and_characters_too(name: str, tmp_path: Path) -> None:
    """Rows of any shape and type."""
    image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    characters = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(4 * 5, 11))
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(7, 1, 6, 6, generator=generator)
    texts = torch.randint(11, (7, 5), generator=generator)
    for module, inputs, folder in ((image, images, "image"), (characters, texts, "characters")):
        (tmp_path / folder).mkdir()
        program = runtime(write_program(module, inputs[0], tmp_path / folder / name))
        for rows in ROWS:
            with torch.no_grad():
                torch.testing.assert_close(
                    program(inputs[:rows]), module(inputs[:rows]), rtol=1e-5, atol=1e-6
                )


def test_a_file_that_cannot_be_is_refused_before_anything_is_computed(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.pkl must end in \.pt2 or \.onnx"):
        export_program(run, "speaker-04", tmp_path / "model.pkl")
    (tmp_path / "model.pt2").write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        export_program(run, "speaker-04", tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_bytes() == b"mine"
