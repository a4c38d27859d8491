// Puts each figure together: its island of JSON, the reader's choices, the drawing, its numbers.

const PLOTS = {
  Curves: curvesPlot,
  Spread: spreadPlot,
  Intervals: intervalsPlot,
  HeatMap: heatMapPlot,
  Bars: barsPlot,
};

class Zoom {
  constructor(state, both, redraw) {
    Object.assign(this, { state, both, redraw, changed: () => {} });
  }

  // The ends that a plot has now, moved or scaled as they are on the screen, so that it suits any scale.
  set(moveEnds) {
    for (const name of this.both ? ["x", "y"] : ["x"]) {
      const scale = this.plot.scale(name);
      const [from, to] = scale.domain.map(scale.apply);
      const [left, right] = moveEnds(name, from, to);
      this.state.zoom[name] = [scale.invert(left), scale.invert(right)];
    }
    this.finish();
  }

  scale(factor) {
    this.set((name, from, to) => {
      const [middle, half] = [(from + to) / 2, (factor * (to - from)) / 2];
      return [middle - half, middle + half];
    });
  }

  move(right, up) {
    this.set((name, from, to) => {
      const step = 0.25 * (name === "x" ? right : up) * (to - from);
      return [from + step, to + step];
    });
  }

  reset() {
    this.state.zoom = { x: null, y: null };
    this.finish();
  }

  finish() {
    this.changed(this.state.zoom.x !== null);
    this.redraw();
  }

  // A drag over the plot; with a finger the page is scrolled instead.
  follow(plot, options) {
    this.plot = plot;
    const svg = d3.select(plot.tagName === "svg" ? plot : plot.querySelector("svg"));
    const frame = [
      [options.marginLeft, options.marginTop],
      [options.width - options.marginRight, options.height - options.marginBottom],
    ];
    const brush = (this.both ? d3.brush() : d3.brushX())
      .extent(frame)
      .filter((event) => !event.button && event.type === "mousedown");
    brush.on("end", ({ selection }) => {
      if (!selection) return;
      const [across, down] = this.both
        ? [
            [selection[0][0], selection[1][0]],
            [selection[1][1], selection[0][1]],
          ]
        : [selection];
      this.set((name) => (name === "x" ? across : down));
    });
    svg.append("g").attr("class", "brush").call(brush).selectAll("*").style("touch-action", "pan-y");
  }
}

// The numbers of a chart as headings and rows.
const NUMBERS = {
  Curves: (chart) => [
    ["line", ...chart.axes, chart.yLabel || "value", "low", "high"],
    chart.series.flatMap((one) =>
      one.y.map((value, i) => [
        one.name,
        ...chart.axes.map((axis) => one.x[axis]?.[i] ?? null),
        value,
        one.low?.[i] ?? null,
        one.high?.[i] ?? null,
      ]),
    ),
  ],
  Spread: (chart) => [
    ["client", ...chart.models.map((model) => model.name)],
    chart.clients.map((client, i) => [client, ...chart.models.map((model) => model.values[i])]),
  ],
  Intervals: (chart) => [["name", chart.label, "low", "high"], chart.rows],
  HeatMap: (chart) => [
    [chart.rowLabel, ...chart.columns],
    chart.rows.map((row, i) => [row, ...chart.values[i]]),
  ],
  Bars: (chart) => [
    ["name", ...chart.parts.map((part) => part.name)],
    chart.groups.map((group) => [group.name, ...group.values]),
  ],
};

function dataDetails({ id }, chart, whose) {
  const [headings, rows] = NUMBERS[chart.kind](chart);
  const details = element("details", { class: "data" }, element("summary", {}, "Data"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const links = [
      downloadLink("CSV", `${id}.csv`, "text/csv", () => asCsv([headings, ...rows])),
      downloadLink("JSON", `${id}.json`, "application/json", () =>
        JSON.stringify(
          rows.map((row) => Object.fromEntries(headings.map((heading, i) => [heading, row[i]]))),
        ),
      ),
    ];
    links.forEach((link) => link.setAttribute("aria-label", `${chart.title}, as ${link.textContent}`));
    const some =
      rows.length > MOST_ROWS_SHOWN
        ? `, the first ${MOST_ROWS_SHOWN} of ${rows.length} rows; the downloads have all`
        : "";
    const box = element("div", {
      class: "scroll tall",
      tabindex: "0",
      role: "region",
      "aria-label": [whose, chart.title, "numbers"].filter(Boolean).join(": "),
    });
    box.append(buildTable(`${chart.title}: its numbers${some}`, headings, rows));
    details.append(element("p", { class: "downloads" }, "Download ", links[0], " ", links[1]), box);
  });
  return details;
}

function legendOf(chart) {
  if (chart.kind === "Curves") return chart.series.filter((one) => one.client === undefined);
  return { Spread: chart.models, Bars: chart.parts }[chart.kind] ?? [];
}

function clientsOf(chart) {
  if (chart.kind === "Curves")
    return chart.series.filter((one) => one.client !== undefined).map((one) => one.client);
  if (chart.kind === "HeatMap") return chart.rowLabel === "client" ? chart.rows : [];
  return chart.clients ?? [];
}

function heatLegend(chart) {
  const values = chart.values.flat().filter((value) => value !== null);
  if (chart.categorical) {
    const box = element("div", { class: "legend plain" });
    for (const value of [...new Set(values)].sort((a, b) => a - b)) {
      const item = element("span");
      item.innerHTML = swatch({ colour: `series-${((value % 9) + 9) % 9}` });
      item.append(` ${chart.valueLabel} ${value}`);
      box.append(item);
    }
    return box;
  }
  const [low, high] = heatEnds(chart);
  return element(
    "div",
    { class: "legend plain" },
    `${chart.valueLabel}: ${showNumber(low, 3)}`,
    element("span", { class: "ramp" }),
    showNumber(high, 3),
  );
}

function startFigure(figure) {
  const chart = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const place = figure.querySelector(".drawing");
  const aside = (chart.series ?? []).filter((one) => one.aside).map((one) => one.name);
  const state = { hidden: new Set(aside), axis: chart.axes?.[0], rows: "models", zoom: { x: null, y: null } };
  const zoom =
    chart.kind === "Bars" ? null : new Zoom(state, ["Curves", "HeatMap"].includes(chart.kind), draw);
  const controls = element("div", { class: "controls" });
  if (chart.kind === "Curves" && chart.axes.length > 1) {
    controls.append(
      choice(
        "Horizontal axis",
        chart.axes.map((axis) => [axis, axis]),
        state.axis,
        (axis) => {
          state.axis = axis;
          zoom.reset();
        },
      ),
    );
  }
  if (chart.kind === "Spread" && chart.clients.length <= 60) {
    controls.append(
      choice(
        "Rows",
        [
          ["models", "models"],
          ["clients", "clients"],
        ],
        state.rows,
        (rows) => {
          state.rows = rows;
          draw();
        },
      ),
    );
  }
  const clients = clientsOf(chart);
  if (clients.length) controls.append(clientPicker(clients));
  if (zoom) controls.append(zoomButtons(zoom));
  place.before(controls);
  const items = legendOf(chart);
  if (items.length > 1) place.before(legend(items, state.hidden, draw));
  if (chart.kind === "HeatMap") place.before(heatLegend(chart));
  figure.append(dataDetails(figure, chart, figure.closest("section")?.ariaLabel));

  let width = 0;
  function draw() {
    const options = PLOTS[chart.kind](chart, state, width);
    const plot = Plot.plot(options);
    plot.setAttribute("aria-hidden", "true"); // its place has a name, and the data are a table
    place.replaceChildren(plot);
    zoom?.follow(plot, options);
  }
  const mayHaveClients = clients.length > 0 || chart.kind === "Intervals";
  document.addEventListener("pick", () => mayHaveClients && draw());
  new ResizeObserver(() => {
    const available = Math.floor(place.clientWidth);
    if (available > 0 && available !== width) {
      width = available;
      draw();
    }
  }).observe(place);
}

prepareTables();
document.querySelectorAll("figure.chart").forEach(startFigure);
document.documentElement.classList.add("ready");
