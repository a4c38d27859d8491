"""What a page says, as a reader of its source finds it."""

from html.parser import HTMLParser


class Tables(HTMLParser):
    """The cells of every table, by the table's id."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = self.tables[dict(attrs)["id"] or ""] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._inside = True
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._rows[-1][-1] += data


def tables(text: str) -> dict[str, list[list[str]]]:
    """The cells of every table of a page, by the table's id."""
    reader = Tables()
    reader.feed(text)
    return reader.tables
