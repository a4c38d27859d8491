// Tables that can be sorted and downloaded.

// A new element; `on...` attributes are functions, null ones are left out.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function cellText(row, column) {
  return row.cells[column]?.innerText.trim() ?? "";
}

// Numbers before words, what is missing last, in both directions.
function compareCells(one, other, direction) {
  const [left, right] = [readNumber(one), readNumber(other)];
  if (left !== null && right !== null) return direction * (left - right || 0);
  if (left !== null || right !== null) return left !== null ? -1 : 1;
  return direction * one.localeCompare(other, undefined, { numeric: true });
}

function sortTable(table, heading) {
  const column = heading.cellIndex;
  const direction = heading.getAttribute("aria-sort") === "descending" ? 1 : -1;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const body = table.tBodies[0];
  const texts = new Map([...body.rows].map((row) => [row, cellText(row, column)]));
  body.append(
    ...[...body.rows].sort((one, other) => compareCells(texts.get(one), texts.get(other), direction)),
  );
}

function makeSortable(table) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = element("button", {
      type: "button",
      class: "sort",
      onclick: () => sortTable(table, heading),
    });
    button.append(...heading.childNodes);
    heading.append(button);
  }
}

function asCsv(rows) {
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value);
  return (
    rows.map((row) => row.map((value) => cell(value === null ? "" : String(value))).join(",")).join("\n") +
    "\n"
  );
}

// A link whose file is made when it is asked for.
function downloadLink(words, file, type, content) {
  const link = element("a", { href: "#", download: file, class: "download" }, words);
  link.addEventListener("click", () => {
    link.href = URL.createObjectURL(new Blob([content()], { type }));
  });
  return link;
}

function tableAsCsv(table) {
  const rows = [...table.tHead.rows, ...table.tBodies[0].rows];
  return asCsv(rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
}

// Every table of the class "sortable", when the page is opened.
function prepareTables() {
  for (const table of document.querySelectorAll("table.sortable")) {
    makeSortable(table);
    const link = downloadLink("CSV", `${table.id}.csv`, "text/csv", () => tableAsCsv(table));
    link.setAttribute("aria-label", `${table.caption?.innerText ?? table.id}, as CSV`);
    (table.closest(".scroll") ?? table).after(element("p", { class: "downloads" }, link));
  }
}

// Marks the rows of a client in all tables of the page.
function markClient(client) {
  for (const heading of document.querySelectorAll("table.clients tbody th")) {
    heading.parentElement.classList.toggle("picked", client !== "" && heading.innerText.trim() === client);
  }
}

const MOST_ROWS_SHOWN = 1000;

// A table of plain values, as the numbers behind a figure.
function buildTable(caption, headings, rows) {
  const table = element("table", { class: "numbers" });
  table.append(element("caption", {}, caption));
  const line = element("tr");
  headings.forEach((heading) => line.append(element("th", { scope: "col" }, heading)));
  table.append(element("thead", {}, line));
  const body = element("tbody");
  for (const [name, ...values] of rows.slice(0, MOST_ROWS_SHOWN)) {
    const row = element("tr", {}, element("th", { scope: "row" }, name));
    values.forEach((value) =>
      row.append(element("td", {}, typeof value === "number" ? showNumber(value, 5) : (value ?? "–"))),
    );
    body.append(row);
  }
  table.append(body);
  makeSortable(table);
  return table;
}
