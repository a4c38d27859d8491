"""A standard ResNet-18 with batch norm between ten clients: trained, killed, resumed, exported.

    python tour.py                                                        # an hour or so on two cores
    python tour.py --width 16 --rows 4400 --rounds 10 --local-steps 10    # a quarter as wide: ten minutes
    python tour.py --rows 440 --rounds 2 --local-steps 1                  # the whole width, little training
    python tour.py --width 8 --rows 600 --rounds 2 --local-steps 2        # to look at the way only

resnet.py beside this file is plain PyTorch and knows nothing of federations.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

import idiolect

METHODS = "fedavg,fedbn,fedper,apfl,ditto"
HERE = Path(__file__).parent


def main() -> None:
    """The whole way."""
    options = _options()
    folder = Path(options.out).absolute()
    killed_and_resumed(folder, options)
    comparison = idiolect.show(folder)
    statistics_stay_at_home(comparison, folder / "homes")
    taken_home(comparison, folder / "homes")


def killed_and_resumed(folder: Path, options: argparse.Namespace) -> None:
    """Begin a comparison, end it as a power cut would after its first saved round, and go on."""
    settings = [
        f"methods={METHODS}", "data=cifar10", "data.clients=11", "data.partition=dirichlet",
        "data.concentration=0.5", f"data.rows={options.rows}", "newcomers.clients=1",
        "model=resnet:ResNet18", f"model.width={options.width}", f"rounds={options.rounds}",
        f"local_steps={options.local_steps}", "batch_size=20", "lr=0.05", "evaluate_every=1",
        "checkpoint.every=1", "seeds=1", f"out={folder}",
    ]  # fmt: skip
    # Models of one's own are found beside where the command is called.
    begun = subprocess.Popen([sys.executable, "-m", "idiolect.cli", "compare", *settings], cwd=HERE)
    while begun.poll() is None and not any(folder.rglob("checkpoints/round-*1")):
        time.sleep(0.2)
    begun.send_signal(signal.SIGKILL)
    print(f"killed: exit {begun.wait()}", flush=True)
    subprocess.run([sys.executable, "-m", "idiolect.cli", "resume", str(folder)], cwd=HERE, check=True)


def statistics_stay_at_home(comparison: idiolect.Comparison, homes: Path) -> None:
    """FedBN's clients share the convolutions and keep normalisation to themselves."""
    run = next(run for run in comparison.runs if run.config.method_name == "fedbn")
    clients = run.clients().index[:2]
    one, other = (weights_of(idiolect.export(run, client=name, out=homes / name)) for name in clients)
    for name in ("conv1.weight", "bn1.weight", "bn1.running_mean"):
        same = "equal" if torch.equal(one[name], other[name]) else "different"
        print(f"{name} of {clients[0]} and {clients[1]}: {same}")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Parameters and statistics of an exported model."""
    return load_file(folder / "model.safetensors")


def taken_home(comparison: idiolect.Comparison, homes: Path) -> None:
    """A client's model as one file that torch alone can use, beside the same model in Idiolect."""
    run = comparison.runs[0]
    client = run.clients().index[0]
    program = torch.export.load(idiolect.export(run, client=client, to=homes / "model.pt2")).module()
    model = idiolect.load_model(idiolect.export(run, client=client, out=homes / "model"))
    images = torch.randn(3, 3, 32, 32)
    difference = (program(images)["outputs"] - model.outputs(images)).abs().max()
    print(f"the exported program differs by {difference:.1e}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64, help="of the first stage; 64 is the standard")
    parser.add_argument("--rows", type=int, default=2200, help="images in all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local-steps", type=int, default=4)
    parser.add_argument("--out", default="runs/resnet18")
    return parser.parse_args()


if __name__ == "__main__":
    main()
