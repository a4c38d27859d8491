"""The application: its commands, in the order in which the help lists them."""

import typer

from idiolect.cli import (
    bench,
    compare,
    data,
    datasets,
    export,
    join,
    methods,
    personalize,
    predict,
    report,
    reproduce,
    resume,
    run,
    serve,
    show,
    silo,
    tune,
)
from idiolect.cli.console import Commands

app = typer.Typer(
    name="idiolect",
    cls=Commands,
    help="Personalized federated learning: many clients learn together, each ends with its own model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    methods.methods,
    datasets.datasets,
    data.data,
    run.run,
    compare.compare,
    tune.tune,
    resume.resume,
    show.show,
    report.report,
    reproduce.reproduce,
    export.export,
    predict.predict,
    personalize.personalize,
    bench.bench,
    serve.serve,
    join.join,
):
    app.command()(command)
app.add_typer(silo.silo, name="silo")
