"""Arguments and options that several commands have."""

from typing import Annotated

import typer

SettingsArgument = Annotated[
    list[str],
    typer.Argument(metavar="[FILE.yaml] KEY=VALUE...", help="a YAML file and settings; the last one wins"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
ClientsOption = Annotated[bool, typer.Option("--clients", help="also print every client's values")]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", help="where data sets are; otherwise IDIOLECT_DATA or a cache")
]
StateOption = Annotated[str | None, typer.Option(help="at a silo: its state folder")]
KindOption = Annotated[
    str | None, typer.Option(help="global, localized, personal or group; of a comparison: chosen")
]
KeysOption = Annotated[str | None, typer.Option(help="your folder of keys from `idiolect silo init`")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="no TLS, no keys; on loopback only")]
SeparatorOption = Annotated[
    str, typer.Option(help="between columns: comma, semicolon, tab or bar; recognised by default")
]
DecimalOption = Annotated[str, typer.Option(help="point or comma; recognised by default")]
EncodingOption = Annotated[str, typer.Option(help="utf-8, utf-16 or latin-1; recognised by default")]


def data_dir_setting(folder: str | None) -> list[str]:
    """The setting that `--data-dir` is short for."""
    return [] if folder is None else [f"data.data_dir={folder}"]
