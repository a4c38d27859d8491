"""A name is found in one way whatever is chosen by it; what is wrong is one sentence."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idiolect.codecs.registry import CATALOGUE as CODECS
from idiolect.codecs.registry import by_name
from idiolect.data.catalogue import CATALOGUE as DATA
from idiolect.data.catalogue import load
from idiolect.errors import UserError
from idiolect.evaluation.metrics import CATALOGUE as METRICS
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import build_model
from idiolect.participation import Participation
from idiolect.participation.plan import CATALOGUE as PLANS
from idiolect.plugins import Catalogue

KINDS: dict[str, tuple[Catalogue[Any], str, str, str]] = {  # built in, entry point, import path
    "method": (METHODS, "FedAvg", "ownrep", "idiolect_outside.fedrep:FedRep"),
    "data": (DATA, "three_clusters", "blobs", "idiolect_outside.data:blobs"),
    "model": (MODELS, "CharLSTM", "two-layers", "idiolect_outside.models:two_layers"),
    "codec": (CODECS, "TopK", "fixed-point", "idiolect_outside.codecs:FixedPoint"),
    "metric": (METRICS, "Balanced-Accuracy", "brier", "idiolect_outside.metrics:brier"),
    "plan": (PLANS, "", "nightly", "idiolect_outside.plans:Nightly"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_built_in_or_installed_or_an_import_path(kind: str, outside: Path) -> None:
    catalogue, built_in, entry_point, path = KINDS[kind]
    found = catalogue.find(path)
    assert catalogue.find(entry_point) is found
    assert catalogue.find(entry_point.upper().replace("-", "_")) is found
    assert (catalogue.path(entry_point), catalogue.path(path)) == (path, path)
    assert (catalogue.spelled(entry_point.title()), catalogue.spelled(path)) == (entry_point, path)
    assert catalogue.is_own(entry_point)
    assert catalogue.is_own(path)
    assert catalogue.entries() == {**catalogue.built_in, entry_point: found}
    if built_in:
        assert catalogue.find(built_in) in catalogue.built_in.values()
        assert catalogue.spelled(built_in) in catalogue.built_in
        assert not catalogue.is_own(built_in)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_gets_the_nearest_ones_and_all_others(kind: str, outside: Path) -> None:
    catalogue, _, entry_point, _ = KINDS[kind]
    misspelt = f"{entry_point[:-1]}q"
    expected = (
        rf"^{kind}='{misspelt}' is not known \(did you mean .*{entry_point}.*; the .* are .*, or .*your own"
    )
    with pytest.raises(UserError, match=expected) as caught:
        catalogue.find(misspelt)
    assert "\n" not in str(caught.value)


def test_where_nothing_has_a_name_an_import_path_is_asked_for() -> None:
    with pytest.raises(
        UserError, match=r"^participation.plan='x' is not known; a plan is your own as package"
    ):
        PLANS.find("x", "participation.plan")


FILES = {
    "good.py": "number = 3\ndef function(**options): pass\n",
    "broken.py": "def f(:\n",
    "failing.py": "raise RuntimeError('the disk is\\nfull')\n",
    "needy.py": "import a_package_that_nobody_has\n",
    "classes.py": (
        "from typing import ClassVar\n"
        "from pydantic.dataclasses import dataclass\n"
        "from idiolect.codecs import Codec\n"
        "from idiolect.core import STRICT, Method\n"
        "from idiolect.methods.fedavg import FedAvg\n"
        "class Plain(FedAvg):\n    name: ClassVar[str] = 'plain'\n"
        "@dataclass(frozen=True, kw_only=True, config=STRICT)\n"
        "class Spaced(FedAvg):\n    name: ClassVar[str] = 'my own'\n"
        "@dataclass(frozen=True, kw_only=True, config=STRICT)\n"
        "class Half(Method):\n    name: ClassVar[str] = 'half'\n"
        "class Nameless(Method):\n"
        "    server_init = client_init = exchanges = predictors = brief = lambda self: None\n"
        "@dataclass(frozen=True, kw_only=True, config=STRICT)\n"
        "class Asking(FedAvg):\n    name: ClassVar[str] = 'asking'\n    depth: int\n"
        "class HalfCodec(Codec):\n    pass\n"
        "class PlainCodec(Codec):\n    operator = count_bits = write = read = lambda self: None\n"
    ),
}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no such module": (
        lambda: METHODS.find("good.inside.further:X"),
        "method='good.inside.further:X' cannot be imported: there is no module good.inside",
    ),
    "no such package": (
        lambda: MODELS.find("absent:factory"),
        "model='absent:factory' cannot be imported: there is no module absent",
    ),
    "no such attribute": (
        lambda: DATA.find("good:functoin"),
        "data='good:functoin' cannot be imported: the module good has no functoin (did you mean function?)",
    ),
    "syntax": (
        lambda: METHODS.find("broken:X"),
        "method='broken:X' cannot be imported: the module broken fails with SyntaxError: invalid syntax",
    ),
    "failure": (
        lambda: CODECS.find("failing:X", "codec.up"),
        "codec.up='failing:X' cannot be imported: the module failing fails with RuntimeError: the disk is "
        "full",
    ),
    "a dependency": (
        lambda: METRICS.find("needy:X"),
        "metric='needy:X' cannot be imported: the module needy fails with ModuleNotFoundError: No module "
        "named 'a_package_that_nobody_has'",
    ),
    "not a path": (lambda: METHODS.find("good:"), "method='good:' is not known; the methods are local, "),
    "a number as method": (
        lambda: METHODS.find("good:number"),
        "method='good:number' cannot be used: it must be a class derived from idiolect.core.Method, not a "
        "value of type int",
    ),
    "another class as method": (
        lambda: METHODS.find("pathlib:Path"),
        "method='pathlib:Path' cannot be used: it must be a class derived from idiolect.core.Method, not the "
        "class Path",
    ),
    "half a method": (lambda: METHODS.find("classes:Half"), "cannot be used: the class Half lacks "),
    "a nameless method": (
        lambda: METHODS.find("classes:Nameless"),
        "cannot be used: the class Nameless does not say name and kinds and judged_by",
    ),
    "a method with a space": (
        lambda: METHODS.find("classes:Spaced"),
        "cannot be used: its name 'my own' must be of letters, digits, - and _",
    ),
    "a method that is no dataclass": (
        lambda: METHODS.find("classes:Plain"),
        "cannot be used: the class Plain must be a dataclass of pydantic",
    ),
    "a method that cannot be made": (
        lambda: METHODS.find("classes:Asking"),
        "cannot be used: its hyper-parameter depth must have a default",
    ),
    "a class as data": (lambda: DATA.find("pathlib:Path"), "it must be a function, not the class Path"),
    "a number as model": (
        lambda: MODELS.find("good:number"),
        "it must be a factory or a class, not a value of type int",
    ),
    "a function as codec": (
        lambda: CODECS.find("good:function"),
        "it must be a class derived from idiolect.codecs.Codec, not a function",
    ),
    "half a codec": (
        lambda: CODECS.find("classes:HalfCodec"),
        "the class HalfCodec lacks count_bits, operator, read, write",
    ),
    "a codec that is no dataclass": (
        lambda: CODECS.find("classes:PlainCodec"),
        "the class PlainCodec must be a dataclass of its options: @dataclass(frozen=True)",
    ),
    "an undeclared metric": (
        lambda: METRICS.find("good:function"),
        "as a metric with @metric(higher_is_better=...) of idiolect.evaluation.metrics, not a function",
    ),
    "a number as plan": (
        lambda: PLANS.find("good:number"),
        "it must be a class or a function, not a value of type int",
    ),
    "what a loader gave": (
        lambda: load("good:function", seed=0),
        "data='good:function' gave a value of type NoneType, not an idiolect.Federation",
    ),
    "what a factory gave": (
        lambda: build_model("good:function", load("quadratics", seed=0)),
        "model='good:function' gave a value of type NoneType, not a torch.nn.Module",
    ),
    "what a plan's function gave": (
        lambda: Participation(plan="good:function").bind(("a", "b")),
        "participation.plan='good:function' gave a value of type NoneType, which is no plan",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_one_sentence(case: str, here: Path, outside: Path) -> None:
    for name, text in FILES.items():
        (here / name).write_text(text)
        sys.modules.pop(Path(name).stem, None)
    attempt, sentence = WRONG[case]
    with pytest.raises(UserError) as caught:
        attempt()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


OPTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "data": (
        lambda: load("idiolect_outside.data:blobs", seed=0, client=3),
        "data 'idiolect_outside.data:blobs' has no option 'client' (did you mean clients?); "
        "the options are clients, rows",
    ),
    "data, a value": (
        lambda: load("blobs", seed=0, clients="many"),
        "data 'blobs': clients='many' is not right",
    ),
    "model": (
        lambda: build_model("two-layers", load("blobs", seed=0), widht=3),
        "model 'two-layers' has no option 'widht' (did you mean width?); the options are width",
    ),
    "model, missing": (
        lambda: build_model("torch.nn:Linear", load("blobs", seed=0), in_features=3),
        "model 'torch.nn:Linear' needs the option 'out_features'",
    ),
    "codec": (
        lambda: by_name("fixed-point", bit=3),
        "codec 'fixed-point' has no option 'bit' (did you mean bits?)",
    ),
    "plan": (
        lambda: Participation(plan={"name": "nightly", "evry": 3}).check_plan(),
        "plan 'nightly' has no option 'evry' (did you mean every?); the options are every",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_are_checked_against_the_signature(case: str, outside: Path) -> None:
    attempt, sentence = OPTIONS[case]
    with pytest.raises(UserError) as caught:
        attempt()
    assert sentence in str(caught.value)


def declare(folder: Path, package: str, line: str) -> None:
    """As if a package were installed that declares a method."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[idiolect.methods]\n{line}\n")


def test_two_packages_that_declare_one_name_are_told_apart(outside: Path, here: Path) -> None:
    declare(here, "other_package", "own-rep = other_package:FedRep")
    sys.path.append(str(here))
    with pytest.raises(UserError, match=r"'ownrep' is declared by more than one installed package") as caught:
        METHODS.find("ownrep")
    assert "idiolect_outside.fedrep:FedRep or other_package:FedRep" in str(caught.value)


def test_an_entry_point_that_cannot_be_used_is_left_out_of_lists_with_a_line(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(here, "other_package", "gone = other_package:Gone\nwhole = idiolect.methods.fedavg")
    sys.path.append(str(here))
    assert METHODS.entries() == METHODS.built_in
    assert caplog.messages == [
        "method='gone' cannot be imported: there is no module other_package",
        "method='whole' is declared as the module idiolect.methods.fedavg; it must be package.module:Name",
    ]


def test_what_is_built_in_comes_first(here: Path) -> None:
    declare(here, "other_package", "fedavg = other_package:Mine")
    sys.path.append(str(here))
    assert METHODS.find("fedavg") is FedAvg
    assert METHODS.entries() == METHODS.built_in


def test_a_module_beside_the_user_is_found_and_one_that_is_installed_comes_first(here: Path) -> None:
    (here / "my_beside.py").write_text("def factory(): pass\n")
    (here / "json.py").write_text("raise RuntimeError\n")
    sys.modules.pop("my_beside", None)
    assert MODELS.find("my_beside:factory").__name__ == "factory"
    assert MODELS.find("json:loads") is sys.modules["json"].loads


def test_a_folder_comes_before_a_data_set_of_an_installed_package(outside: Path, here: Path) -> None:
    assert len(load("Blobs", seed=0)) == 4
    (here / "blobs").mkdir()
    with pytest.raises(UserError, match="the folder 'blobs' holds no data that is known"):
        load("blobs", seed=0)
    (here / "quadratics").mkdir()
    assert len(load("quadratics", seed=0, clients=3)) == 3
