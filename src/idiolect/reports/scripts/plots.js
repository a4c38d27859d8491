// One function for each kind of chart: what Observable Plot draws for a chart, the reader's choices and a width.
// It returns the options of Plot.plot; `zoom` are the ends of the axes, null where they are those of the chart.

const MARGIN = { top: 24, right: 16, bottom: 40 };
const TEXT = 7; // pixels of a letter
const NARROW = 560;

const css = (name) => `var(--${name})`;

function common(chart, width, height, left) {
  return {
    width,
    height,
    marginTop: MARGIN.top,
    marginRight: MARGIN.right,
    marginBottom: MARGIN.bottom,
    marginLeft: left,
    style: { background: "transparent", color: "inherit", fontSize: "12px", fontFamily: "inherit", "--plot-background": "var(--panel)" },
    color: { type: "identity" },
  };
}

function tip(points, more = {}) {
  return Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: "tip", maxRadius: 60, fontSize: 12, lineWidth: 24, ...more }));
}

// A method's mark for Plot, from the corners of its path.
function symbol(path) {
  const corners = path.slice(1, -1).split("L").map((pair) => pair.split(" ").map(Number));
  return {
    draw(context, size) {
      const scale = Math.sqrt(size / Math.PI) / 5;
      corners.forEach(([x, y], place) => (place ? context.lineTo(scale * x, scale * y) : context.moveTo(scale * x, scale * y)));
      context.closePath();
    },
  };
}

// Ticks of an axis that is logarithmic away from zero.
function logTicks([low, high], most) {
  const fine = [];
  const least = low > 0 ? low : high / 1e6;
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(high); power++) {
    for (const digit of [1, 2, 5]) fine.push(Number(`${digit}e${power}`));
  }
  const inside = fine.filter((tick) => tick >= low && tick <= high);
  const decades = inside.filter((tick) => String(tick.toExponential()).startsWith("1e"));
  const ticks = inside.length <= most || decades.length < 2 ? some(inside, most) : some(decades, most);
  return low <= 0 ? [0, ...ticks] : ticks;
}

// An axis whose ticks all have their labels: of a logarithmic scale Plot would leave some out.
function logAxis(axis, { ticks, tickFormat, label }) {
  return axis(ticks, { text: (tick) => tickFormat(tick), label });
}

function within(value, [low, high]) {
  return Math.min(Math.max(value, low), high);
}

// The values of an axis over all series that have it.
function extentOf(series, axis) {
  const [low, high] = d3.extent(series.flatMap((one) => one.x[axis] ?? []));
  if (low === undefined) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function xScale(chart, axis, domain, width) {
  const scale = { domain, label: axis, tickFormat: (value) => showNumber(value) };
  const ticks = width < NARROW ? 4 : 8;
  if (!chart.xLog[axis]) return { ...scale, ticks };
  const least = d3.min(chart.series.flatMap((one) => one.x[axis] ?? []).filter((value) => value > 0));
  return { ...scale, type: "symlog", constant: least ?? 1, ticks: logTicks(domain, ticks).filter((tick) => tick === 0 || tick >= (least ?? 0)) };
}

function curvesPlot(chart, state, width) {
  const { axis } = state;
  const y = state.zoom.y ?? chart.room;
  const x = state.zoom.x ?? extentOf(chart.series, axis);
  const span = y[1] - y[0];
  const reach = chart.yLog ? [y[0] / 10, y[1] * 10] : [y[0] - span, y[1] + span];
  const isShown = (one) => (one.x[axis] || Number.isFinite(one.level)) && !state.hidden.has(one.client ?? one.name);
  const lines = chart.series.filter(isShown).map((one, place) => {
    const points = pointsOn(one, axis, x)
      .filter((point) => point.x !== null)
      .map((point) => ({
        ...point,
        line: point.value === null ? NaN : within(point.value, reach),
        y: within(point.value, y),
        from: point.low === undefined || point.low === null ? NaN : within(point.low, reach),
        to: point.high === undefined || point.high === null ? NaN : within(point.high, reach),
        tip: curveTip(chart, one, axis, point),
      }));
    return { ...one, points, place };
  });
  const inside = (point) => point.value !== null && point.x >= x[0] && point.x <= x[1];
  const yScale = {
    domain: y,
    type: chart.yLog ? "log" : "linear",
    label: chart.yLabel,
    ticks: chart.yLog ? logTicks(y, 6) : 6,
    tickFormat: chart.percent ? showShare : (value) => showNumber(value),
  };
  const grid = { strokeOpacity: 1, stroke: css("line") };
  const marks = [Plot.gridY({ ...grid, ticks: yScale.ticks }), Plot.gridX(grid)];
  if (chart.yLog) marks.push(logAxis(Plot.axisY, yScale));
  for (const line of lines.filter((each) => each.low && each.x[axis])) {
    marks.push(Plot.areaY(line.points, { x: "x", y1: "from", y2: "to", fill: css(line.colour), fillOpacity: lines.length > 4 ? 0.08 : 0.14, clip: true }));
  }
  for (const line of lines) marks.push(...lineMarks(line, chart, inside, lines.length));
  const leaving = lines.flatMap((line) => line.points.filter((point, i) => inside(point) && point.value !== point.y && (i === 0 || line.points[i - 1].value === line.points[i - 1].y)).map((point) => ({ ...point, colour: css(line.colour) })));
  marks.push(
    Plot.text(leaving.filter((point) => point.value > point.y), { x: "x", y: "y", text: () => "▲", dy: 6, fill: "colour" }),
    Plot.text(leaving.filter((point) => point.value < point.y), { x: "x", y: "y", text: () => "▼", dy: -6, fill: "colour" }),
  );
  marks.push(tip(lines.flatMap((line) => line.points.filter(inside))));
  return {
    ...common(chart, width, width < NARROW ? 300 : 380, chart.percent ? 52 : 60),
    x: xScale(chart, axis, x, width),
    y: chart.yLog ? { ...yScale, axis: null } : yScale,
    marks,
  };
}

// Where a series is on an axis; at its level, from end to end, where it has no places.
function pointsOn(series, axis, [from, to]) {
  if (!series.x[axis]) return [from, (from + to) / 2, to].map((x) => ({ x, value: series.level }));
  return series.y.map((value, i) => ({ x: series.x[axis][i], value, low: series.low?.[i], high: series.high?.[i] }));
}

function curveTip(chart, series, axis, point) {
  const band = point.low === undefined || point.low === null ? "" : `\n${showValue(point.low, chart.percent)} to ${showValue(point.high, chart.percent)}`;
  const place = series.x[axis] ? `${axis} ${showNumber(point.x)}` : `at any ${axis}`;
  return `${series.name}\n${place}\n${showValue(point.value, chart.percent)}${band}`;
}

function lineMarks(line, chart, inside, count) {
  const isPicked = line.client !== undefined && line.client === picked.client;
  const faint = line.client !== undefined && !isPicked;
  const stroke = css(line.client === undefined ? line.colour : "faint");
  const look = {
    stroke: isPicked ? css("ink") : stroke,
    strokeWidth: isPicked ? 3 : faint ? 1 : line.width + 0.3,
    strokeOpacity: faint ? (picked.client ? 0.2 : 0.55) : 1,
    strokeDasharray: line.dash || null,
    clip: true,
  };
  const marks = [Plot.line(line.points, { x: "x", y: "line", ...look })];
  if (line.client !== undefined) return marks;
  // Where curves run together, the marks of one are beside those of the others.
  const apart = Math.max(1, Math.floor(line.points.length / 6));
  const first = Math.floor((apart * line.place) / count);
  const seen = line.points.filter((point, i) => inside(point) && point.value === point.y && (chart.markers || i % apart === first));
  marks.push(Plot.dot(seen, { x: "x", y: "y", r: 4, symbol: symbol(line.mark), stroke, fill: line.hollow ? css("paper") : stroke }));
  return marks;
}

// Names beside the plot, in at most two fifths of the width.
function names(items, width) {
  const letters = Math.min(Math.max(...items.map((name) => name.length), 4), Math.floor((0.38 * width) / TEXT));
  return { left: Math.ceil(letters * TEXT) + 14, show: (place) => (items[place] === undefined ? "" : shorten(items[place], letters)) };
}

// A row for each name, from top to bottom.
function rowScale(items, show) {
  const ticks = d3.range(items.length);
  return { domain: [-0.6, items.length - 0.4], reverse: true, ticks, tickFormat: show, label: null, tickSize: 0 };
}

function valueScale(chart, domain, width, log) {
  const most = width < NARROW ? 4 : 8;
  return {
    domain,
    label: chart.label,
    type: log ? "log" : "linear",
    ticks: log ? logTicks(domain, most) : most,
    tickFormat: chart.percent ? showShare : (value) => showNumber(value),
    ...(log ? { axis: null } : { grid: true }),
  };
}

// What an axis of values needs besides its scale.
function valueAxis(scale) {
  if (scale.type !== "log") return [];
  return [Plot.gridX({ ticks: scale.ticks, strokeOpacity: 0.1 }), logAxis(Plot.axisX, scale)];
}

function spreadPlot(chart, state, width) {
  return state.rows === "clients" ? spreadByClient(chart, state, width) : spreadByModel(chart, state, width);
}

function spreadPoints(chart, model, domain, height) {
  return chart.clients
    .map((client, i) => ({
      client,
      value: model.values[i],
      x: within(model.values[i], domain),
      y: height(i),
      tip: `${client}\n${model.name}\n${showValue(model.values[i], chart.percent)}`,
    }))
    .filter((point) => point.value !== null);
}

function spreadMarks(points, model, opacity) {
  const own = { x: "x", y: "y", symbol: symbol(model.mark), stroke: css(model.colour), fill: model.hollow ? css("paper") : css(model.colour), clip: false };
  const isPicked = (point) => point.client === picked.client;
  return [
    Plot.dot(points, { ...own, r: points.length > 300 ? 2 : 3.5, fillOpacity: opacity, strokeOpacity: opacity }),
    Plot.dot(points.filter(isPicked), { ...own, r: 6, stroke: css("ink"), strokeWidth: 2 }),
  ];
}

function outsideMarks(points) {
  return Plot.text(points.filter((point) => point.value !== point.x), { x: "x", y: "y", text: (point) => (point.value > point.x ? "▶" : "◀"), fill: "currentColor", fontSize: 9 });
}

function spreadByModel(chart, state, width) {
  const models = chart.models.filter((model) => !state.hidden.has(model.name));
  const domain = state.zoom.x ?? chart.room;
  const scale = valueScale(chart, domain, width, chart.log);
  const { left, show } = names(models.map((model) => model.name), width);
  const marks = [];
  const all = [];
  const inside = (point) => !state.zoom.x || (point.value >= domain[0] && point.value <= domain[1]);
  models.forEach((model, row) => {
    // Clients side by side instead of on top of each other, the same one at the same height in every row.
    const points = spreadPoints(chart, model, domain, (i) => row + 0.55 * (((i * 0.618034) % 1) - 0.5)).filter(inside);
    marks.push(...spreadMarks(points, model, picked.client ? 0.25 : 0.75), outsideMarks(points));
    all.push(...points);
    if (model.quartiles[0] !== null) {
      const [from, median, to] = model.quartiles.map((end) => within(end, domain));
      marks.push(Plot.ruleY([row], { x1: from, x2: to, y: row, stroke: css("ink"), strokeWidth: 2 }));
      marks.push(Plot.ruleX([median], { x: median, y1: row - 0.3, y2: row + 0.3, stroke: css("ink"), strokeWidth: 2.5 }));
    }
  });
  marks.push(Plot.line(all.filter((point) => point.client === picked.client), { x: "x", y: "y", stroke: css("ink"), strokeWidth: 1 }), tip(all));
  return {
    ...common(chart, width, 40 * Math.max(models.length, 1) + 64, left),
    x: scale,
    y: rowScale(models, show),
    marks: [...valueAxis(scale), ...marks],
  };
}

function spreadByClient(chart, state, width) {
  const models = chart.models.filter((model) => !state.hidden.has(model.name));
  const domain = state.zoom.x ?? chart.room;
  const scale = valueScale(chart, domain, width, chart.log);
  const first = models[0]?.values ?? [];
  const sign = chart.higherIsBetter ? -1 : 1; // the best one at the top
  const order = d3.sort(d3.range(chart.clients.length), (i) => sign * (first[i] ?? -Infinity));
  const row = new Map(order.map((i, place) => [i, place]));
  const { left, show } = names(order.map((i) => chart.clients[i]), width);
  const inside = (point) => !state.zoom.x || (point.value >= domain[0] && point.value <= domain[1]);
  const drawn = models.map((model) => spreadPoints(chart, model, domain, (i) => row.get(i)).filter(inside));
  const all = drawn.flat();
  const spans = d3.rollups(all, (own) => d3.extent(own, (point) => point.x), (point) => point.y);
  const marks = [Plot.ruleY(spans, { y: (d) => d[0], x1: (d) => d[1][0], x2: (d) => d[1][1], stroke: css("line"), strokeWidth: 2 })];
  models.forEach((model, place) => marks.push(...spreadMarks(drawn[place], model, 1), outsideMarks(drawn[place])));
  marks.push(tip(all));
  return {
    ...common(chart, width, 22 * Math.max(order.length, 2) + 64, left),
    x: scale,
    y: rowScale(order, show),
    marks: [...valueAxis(scale), ...marks],
  };
}

function intervalsPlot(chart, state, width) {
  const numbers = chart.rows.flatMap(([, ...ends]) => ends).filter((end) => end !== null && Math.abs(end) < 1e300);
  const [low, high] = d3.extent(chart.zero ? [0, ...numbers] : numbers);
  const pad = 0.04 * (high - low) || 0.5;
  const domain = state.zoom.x ?? [low - pad, high + pad];
  const { left, show } = names(chart.rows.map(([name]) => name), width);
  const rows = chart.rows.map(([name, value, from, to], row) => ({
    name,
    y: row,
    x: within(value, domain),
    value,
    from: from === null ? null : within(from, domain),
    to: to === null ? null : within(to, domain),
    colour: css(!chart.zero || from === null || (from <= 0 && to >= 0) ? "faint" : value > 0 ? "good" : "bad"),
    tip: `${name}\n${intervalText(chart, value, from, to)}`,
  }));
  const known = rows.filter((row) => row.value !== null);
  return {
    ...common(chart, width, 26 * Math.max(rows.length, 2) + 64, left),
    x: { ...valueScale(chart, domain, width, false), tickFormat: chart.percent ? (value) => showNumber(100 * value, 3) : (value) => showNumber(value) },
    y: rowScale(rows, show),
    marks: [
      ...(chart.zero ? [Plot.ruleX([0], { stroke: css("ink") })] : []),
      Plot.ruleY(known.filter((row) => row.from !== null), { y: "y", x1: "from", x2: "to", stroke: "colour", strokeWidth: 2.5, clip: true }),
      Plot.dot(known, { x: "x", y: "y", fill: "colour", r: 5, clip: true }),
      Plot.dot(known.filter((row) => row.name === picked.client), { x: "x", y: "y", r: 8, stroke: css("ink"), strokeWidth: 2 }),
      tip(known),
    ],
  };
}

function intervalText(chart, value, from, to) {
  const shown = chart.zero ? showGain : showValue;
  return shown(value, chart.percent) + (from === null ? "" : `\n${shown(from, chart.percent)} to ${shown(to, chart.percent)}`);
}

function heatColour(chart, value, [low, high]) {
  if (chart.categorical) return css(`series-${((value % 9) + 9) % 9}`);
  const share = high > low ? (value - low) / (high - low) : 1;
  return `color-mix(in oklab, var(--heat) ${Math.round(100 * share)}%, var(--panel))`;
}

function heatMapPlot(chart, state, width) {
  const ends = d3.extent(chart.values.flat());
  const { left } = names(chart.rows, width);
  const height = Math.max(3, Math.min(20, 520 / chart.rows.length));
  const cells = chart.values.flatMap((row, i) =>
    row.map((value, j) => ({ x: chart.columns[j], y: chart.rows[i], value, fill: value === null ? "none" : heatColour(chart, value, ends), tip: `${chart.rowLabel} ${chart.rows[i]}\n${chart.columnLabel} ${chart.columns[j]}\n${chart.valueLabel} ${showNumber(value)}` })),
  );
  const letters = Math.floor((left - 14) / TEXT);
  const widest = Math.max(...chart.columns.map((name) => name.length)) * TEXT + 10;
  const picks = cells.filter((cell) => cell.y === picked.client && cell.x === chart.columns[0]);
  return {
    ...common(chart, width, height * chart.rows.length + 70, left),
    marginBottom: 46,
    x: { type: "band", domain: chart.columns, ticks: some(chart.columns, Math.max(2, Math.floor((width - left) / widest))), label: chart.columnLabel, padding: 0, tickFormat: (name) => shorten(name, 12) },
    y: { type: "band", domain: chart.rows, ticks: some(chart.rows, Math.floor((height * chart.rows.length) / 13) || 1), label: chart.rowLabel, labelAnchor: "top", labelArrow: "none", padding: 0, tickFormat: (name) => shorten(name, letters), tickSize: 0 },
    marks: [
      Plot.cell(cells, { x: "x", y: "y", fill: "fill", inset: height > 8 ? 0.5 : 0 }),
      Plot.ruleY(picks, { y: "y", stroke: css("ink"), strokeWidth: 2, strokeDasharray: "4,3" }),
      tip(cells, { maxRadius: 30 }),
    ],
  };
}

function barsPlot(chart, state, width) {
  const parts = chart.parts.map((part, i) => ({ ...part, i })).filter((part) => !state.hidden.has(part.name));
  const { left } = names(chart.groups.map((group) => group.name), width);
  const letters = Math.floor((left - 14) / TEXT);
  const pieces = chart.groups.flatMap((group) => {
    let from = 0;
    return parts.map((part) => {
      const piece = { y: group.name, from, to: from + (group.values[part.i] ?? 0), colour: css(part.colour), tip: `${group.name}\n${part.name}\n${showNumber(group.values[part.i])} ${chart.label}` };
      from = piece.to;
      return { ...piece, x: (piece.from + piece.to) / 2 };
    });
  });
  const filled = pieces.filter((piece) => piece.to > piece.from);
  return {
    ...common(chart, width, 28 * chart.groups.length + 64, left),
    x: { ...valueScale({ label: chart.label }, [0, d3.max(pieces, (piece) => piece.to) || 1], width, false) },
    y: { type: "band", domain: chart.groups.map((group) => group.name), label: null, padding: 0.3, tickSize: 0, tickFormat: (name) => shorten(name, letters) },
    marks: [
      Plot.barX(filled, { x1: "from", x2: "to", y: "y", fill: "colour", stroke: css("paper"), strokeWidth: 0.5 }),
      tip(filled),
    ],
  };
}

const PLOTS = { Curves: curvesPlot, Spread: spreadPlot, Intervals: intervalsPlot, HeatMap: heatMapPlot, Bars: barsPlot };
