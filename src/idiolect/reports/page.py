"""The report page: one HTML file with everything in it, and its figures as files beside it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from idiolect.errors import UserError
from idiolect.quantities import amount
from idiolect.reports.browser import charts_html
from idiolect.reports.evidence import Evidence, gather
from idiolect.reports.figures import gain_charts, report_charts
from idiolect.reports.html import render
from idiolect.reports.page_tables import (
    answer,
    client_rows,
    data_notes,
    gain_tables,
    marks,
    model_row,
    reported_rounds,
    round_choice,
    run_card,
)
from idiolect.reports.settings import command_of, hyper_parameters
from idiolect.reports.static import save_static
from idiolect.reports.summed import summed_charts, summed_table
from idiolect.runs.comparison import open_folder, runs_of
from idiolect.runs.folder import RunFolder
from idiolect.runs.notes import comparison_notes
from idiolect.runs.summed import WHAT_IT_IS, is_summed
from idiolect.store.files import write_bytes


def can_write_reports() -> bool:
    """Whether what a page is drawn with is installed."""
    return all(find_spec(name) is not None for name in ("matplotlib", "jinja2"))


def require_libraries() -> None:
    """Say what is missing, if pages cannot be written."""
    if not can_write_reports():
        raise UserError("a report page needs matplotlib and jinja2: pip install 'idiolect[report]'")


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write the page for some runs or comparisons, and its figures beside it in `figures/`."""
    require_libraries()
    runs = [run for folder in folders for run in runs_of(open_folder(folder))]
    summed = [run for run in runs if is_summed(run)]
    only_sums = summed and len(summed) == len(runs)
    html = _page_of_sums(summed, page) if only_sums else _page_of_clients(gather(folders), summed, page)
    write_bytes(page, html.encode())


def _page_of_clients(evidence: Evidence, summed: Sequence[RunFolder], page: Path) -> str:
    """Of runs whose clients' metrics are known, and of others with secure sums at its end."""
    gains, charts = gain_charts(evidence), report_charts(evidence)
    save_static([*gains, *charts, *summed_charts(summed)], page.parent / "figures")
    rows, clients_left_out = client_rows(evidence)
    return render(
        "page.html",
        title=_title(evidence),
        evidence=evidence,
        answer=answer(evidence),
        notes=comparison_notes(evidence.runs),
        marks=marks(evidence),
        amount=amount,
        seeds=int(evidence.table.seeds.max()),
        choice=round_choice(evidence),
        gains=gain_tables(evidence),
        models=[model_row(evidence, row) for _, row in evidence.table.iterrows()],
        rounds=reported_rounds(evidence),
        client_columns=list(evidence.clients.columns),
        client_rows=rows,
        clients_left_out=clients_left_out,
        gain_figures=charts_html(gains, headings=3),
        figures=charts_html(charts),
        command=command_of(evidence.runs),
        settings=hyper_parameters(evidence.runs),
        runs=[run_card(run) for run in evidence.runs],
        data_notes=data_notes(evidence),
        summed=_sums(summed) if summed else None,
    )


def _page_of_sums(runs: Sequence[RunFolder], page: Path) -> str:
    """Of runs whose silos told nothing but secure sums."""
    save_static(summed_charts(runs), page.parent / "figures")
    methods = ", ".join(dict.fromkeys(run.config.method_name for run in runs))
    cards = [run_card(run) for run in runs]
    return render(
        "summed.html",
        title=f"{methods} between silos",
        summed=_sums(runs),
        notes=comparison_notes(runs),
        runs=cards,
    )


def _sums(runs: Sequence[RunFolder]) -> dict[str, Any]:
    return {
        "what": WHAT_IT_IS,
        "table": summed_table(runs),
        "figures": charts_html(summed_charts(runs), headings=3),
    }


def _title(evidence: Evidence) -> str:
    methods = ", ".join(dict.fromkeys(evidence.table.method))
    data = ", ".join(dict.fromkeys(Path(run.config.data_name).stem for run in evidence.runs))
    return f"{methods} on {data}"
