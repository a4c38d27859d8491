"""`idiolect join`."""

import logging
from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import log_to_screen
from idiolect.cli.options import DecimalOption, EncodingOption, InsecureOption, KeysOption, SeparatorOption


def join(
    server: Annotated[str, typer.Option(help="the coordinator, as host:port")],
    data: Annotated[str, typer.Option(help="your table: CSV or Parquet; it stays here")],
    name: Annotated[str, typer.Option(help="your name in the coordinator's list")],
    keys: KeysOption = None,
    state: Annotated[str, typer.Option(help="where your models and state are kept")] = "silo-state",
    ignore: Annotated[str, typer.Option(help="columns to leave out: a,b")] = "",
    separator: SeparatorOption = "auto",
    decimal: DecimalOption = "auto",
    encoding: EncodingOption = "auto",
    missing_values: Annotated[str, typer.Option(help="texts for missing values: a,b")] = "?",
    methods: Annotated[str, typer.Option(help="methods that you admit: apfl,fedavg; all by default")] = "",
    allow_method: Annotated[
        list[str] | None,
        typer.Option(help="a method of your own installation that may be used: package.module:Class"),
    ] = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option(help="a model of your own installation that may be used: package.module:factory"),
    ] = None,
    allow_codec: Annotated[
        list[str] | None,
        typer.Option(help="a codec of your own installation that may be used: package.module:Class"),
    ] = None,
    allow_metric: Annotated[
        list[str] | None,
        typer.Option(help="a metric of your own installation that may be used: package.module:function"),
    ] = None,
    keep_rounds: Annotated[int, typer.Option(help="rounds that you can go back, with your state")] = 2,
    max_rounds: Annotated[int, typer.Option(help="most rounds that you admit")] = 1000,
    max_steps: Annotated[int, typer.Option(help="most local steps in an exchange that you admit")] = 10_000,
    max_megabytes: Annotated[float, typer.Option(help="largest message that you admit")] = 512.0,
    max_runs: Annotated[int, typer.Option(help="most runs that you admit with this state")] = 100,
    min_batch: Annotated[int, typer.Option(help="fewest rows in a gradient, or a sum over a class")] = 4,
    min_metric_rows: Annotated[int, typer.Option(help="fewest rows that metrics are told of")] = 10,
    metric_digits: Annotated[int, typer.Option(help="significant digits of metrics that are told")] = 3,
    min_sum: Annotated[int, typer.Option(help="fewest silos in a secure sum that you admit")] = 2,
    share_metrics: Annotated[
        bool | None,
        typer.Option(
            "--share-metrics/--no-share-metrics",
            help="tell the coordinator how good your models are; by default unless you demand privacy",
        ),
    ] = None,
    share_summaries: Annotated[
        bool | None,
        typer.Option(
            "--share-summaries/--no-share-summaries",
            help="tell means, spreads and categories where columns are to be agreed on; by default as above",
        ),
    ] = None,
    require_secure: Annotated[
        bool, typer.Option("--require-secure", help="take part in runs with secure sums only")
    ] = False,
    require_private: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT", help="take part in runs that hide each row, or the silo, only: row, silo"
        ),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="most that all runs with this state may cost in ε: then you stop")
    ] = None,
    delta: Annotated[float, typer.Option(help="the δ that goes with it")] = 1e-5,
    insecure: InsecureOption = False,
) -> None:
    """Take part in a coordinator's runs with your own table, until interrupted.

    Example: idiolect join --server fl.example.org:9092 --name hospital-3 --keys hospital-3 --data my.csv
    """
    from idiolect.silo.processes import end_properly_when_terminated

    end_properly_when_terminated()
    try:
        with log_to_screen(logging.StreamHandler()):
            idiolect.join(
                server=server,
                data=data,
                name=name,
                keys=keys,
                state=state,
                ignore=_listed(ignore),
                separator=separator,
                decimal=decimal,
                encoding=encoding,
                missing_values=_listed(missing_values),
                methods=_listed(methods),
                allow_method=allow_method or (),
                allow_model=allow_model or (),
                allow_codec=allow_codec or (),
                allow_metric=allow_metric or (),
                keep_rounds=keep_rounds,
                max_rounds=max_rounds,
                max_steps=max_steps,
                max_megabytes=max_megabytes,
                max_runs=max_runs,
                min_batch=min_batch,
                min_metric_rows=min_metric_rows,
                metric_digits=metric_digits,
                min_sum=min_sum,
                share_metrics=share_metrics,
                share_summaries=share_summaries,
                require_secure=require_secure,
                require_private=require_private,  # type: ignore[arg-type]  # checked there
                max_epsilon=max_epsilon,
                delta=delta,
                insecure=insecure,
            )
    except KeyboardInterrupt:  # the usual end
        typer.echo(f"{name} has left; the same command joins again, where it was")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())
