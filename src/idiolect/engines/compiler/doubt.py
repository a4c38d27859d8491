"""A rewritten step that gave other results than the plain one: what is needed to look into it, as files.

    step.py             the step as it was recorded, before any pass
    tensors.safetensors its arguments and constants, what it gave plainly and what it gave rewritten
    doubt.json          in words, and which passes rewrote it

`python -m idiolect.engines.compiler.doubt FOLDER` repeats it pass by pass: the first that
differs is to blame.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from idiolect.core.device import to_host
from idiolect.engines.compiler.recorder import Arguments, Step, record
from idiolect.engines.compiler.warrant import unexplained_difference
from idiolect.store.files import new_folder, read_json, write_bytes, write_json


class Doubt(NamedTuple):
    """What was seen, and with which arguments."""

    sentence: str
    program: str
    tensors: dict[str, Tensor]
    passes: tuple[str, ...]

    def save(self, folder: Path) -> None:
        """Write a new folder."""
        with new_folder(folder) as path:
            write_bytes(path / "step.py", self.program.encode())
            save_file(
                {name: value.contiguous() for name, value in self.tensors.items()},
                path / "tensors.safetensors",
            )
            write_json(path / "doubt.json", {"doubt": self.sentence, "passes": list(self.passes)})


def describe(
    plain: Step,
    passes: tuple[str, ...],
    arguments: Arguments,
    finding: str,
    results: tuple[list[Tensor], list[Tensor]],
) -> Doubt:
    """A doubt in a form that can be kept and sent; `results` are the plain ones and the rewritten ones."""
    recorded: Any = record(plain, arguments, ()).later.step.__self__  # type: ignore[attr-defined]
    expected, actual = results
    groups = {**arguments._asdict(), "step": [arguments.step], "expected": expected, "actual": actual}
    tensors = {
        f"{name}.{place}": leaf for name, leaves in groups.items() for place, leaf in enumerate(leaves)
    }
    constants = {f"constant.{name}": value for name, value in recorded.named_buffers()}
    return Doubt(finding, recorded.code, _copies({**tensors, **constants}), passes)


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: to_host(value.detach().clone()) for name, value in tensors.items()}


def reproduce(folder: Path) -> dict[str, str | None]:
    """What is wrong with a kept step after none of the passes, the first, the first two, and so on.

    Not after each alone: most have nothing to do before others have prepared the graph for them.
    """
    tensors = load_file(folder / "tensors.safetensors")
    passes = read_json(folder / "doubt.json")["passes"]

    def group(name: str) -> list[Tensor]:
        return [
            tensors[f"{name}.{place}"] for place in range(sum(key.startswith(f"{name}.") for key in tensors))
        ]

    arguments = Arguments(group("changing"), group("fixed"), group("drawn"), *group("step"))
    plain = _read_step((folder / "step.py").read_text(), tensors)
    choices = {"recorded": ()} | {
        f"up to {name}": tuple(passes[: place + 1]) for place, name in enumerate(passes)
    }
    expected = group("expected")
    found: dict[str, str | None] = {}
    for label, chosen in choices.items():
        try:
            actual = record(plain, arguments, chosen).at(int(arguments.step)).tried(arguments)
        except Exception as error:  # of whatever kind, it is what is looked for
            found[label] = f"fails: {error}"
        else:
            difference = unexplained_difference(plain, arguments, expected, actual)
            found[label] = None if difference is None else str(difference)
    return found


def _read_step(program: str, tensors: dict[str, Tensor]) -> Step:
    """The recorded step, from its text."""
    constants = {
        name.removeprefix("constant."): leaf for name, leaf in tensors.items() if name.startswith("constant.")
    }
    scope: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
    exec(program, scope)
    owner = type("Constants", (), constants)()
    return lambda arguments: scope["forward"](owner, *arguments.flat())


def main() -> None:
    """Print what each pass makes of the step in a folder."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "doubt.json").is_file():
        sys.exit("give one folder with a doubt.json, such as runs/mine/doubts/round-000003-0")
    for label, finding in reproduce(Path(sys.argv[1])).items():
        print(f"{label:18}{finding or 'agrees'}")


if __name__ == "__main__":
    main()
