// Curves: lines over one of their axes, with bands.

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
  // Logarithmic from the least place on, with room for zero.
  const least = d3.min(chart.series.flatMap((one) => one.x[axis] ?? []).filter((value) => value > 0)) ?? 1;
  const [low, high] = domain;
  const positive = high > least ? logTicks([Math.max(low, least), high], ticks) : [];
  return { ...scale, type: "symlog", constant: least, ticks: low <= 0 ? [0, ...positive] : positive };
}

function curvesPlot(chart, state, width) {
  const { axis } = state;
  const y = state.zoom.y ?? chart.room;
  const x = state.zoom.x ?? extentOf(chart.series, axis);
  const span = y[1] - y[0];
  const reach = chart.yLog ? [y[0] / 10, y[1] * 10] : [y[0] - span, y[1] + span];
  const isShown = (one) =>
    (one.x[axis] || Number.isFinite(one.level)) && !state.hidden.has(one.client ?? one.name);
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
  const xAxis = xScale(chart, axis, x, width);
  const marks = [Plot.gridY({ ...grid, ticks: yScale.ticks }), Plot.gridX({ ...grid, ticks: xAxis.ticks })];
  if (chart.yLog) marks.push(logAxis(Plot.axisY, yScale));
  for (const line of lines.filter((each) => each.low && each.x[axis])) {
    marks.push(
      Plot.areaY(line.points, {
        x: "x",
        y1: "from",
        y2: "to",
        fill: css(line.colour),
        fillOpacity: lines.length > 4 ? 0.08 : 0.14,
        clip: true,
      }),
    );
  }
  for (const line of lines) marks.push(...lineMarks(line, chart, inside, lines.length));
  const leaving = lines.flatMap((line) =>
    line.points
      .filter(
        (point, i) =>
          inside(point) &&
          point.value !== point.y &&
          (i === 0 || line.points[i - 1].value === line.points[i - 1].y),
      )
      .map((point) => ({ ...point, colour: css(line.colour) })),
  );
  marks.push(
    Plot.text(
      leaving.filter((point) => point.value > point.y),
      { x: "x", y: "y", text: () => "▲", dy: 6, fill: "colour" },
    ),
    Plot.text(
      leaving.filter((point) => point.value < point.y),
      { x: "x", y: "y", text: () => "▼", dy: -6, fill: "colour" },
    ),
  );
  marks.push(tip(lines.flatMap((line) => line.points.filter(inside))));
  return {
    ...common(chart, width, width < NARROW ? 300 : 380, chart.percent ? 52 : 60),
    x: xAxis,
    y: chart.yLog ? { ...yScale, axis: null } : yScale,
    marks,
  };
}

// Where a series is on an axis; at its level, from end to end, where it has no places.
function pointsOn(series, axis, [from, to]) {
  if (!series.x[axis]) return [from, (from + to) / 2, to].map((x) => ({ x, value: series.level }));
  return series.y.map((value, i) => ({
    x: series.x[axis][i],
    value,
    low: series.low?.[i],
    high: series.high?.[i],
  }));
}

function curveTip(chart, series, axis, point) {
  const band =
    point.low === undefined || point.low === null
      ? ""
      : `\n${showValue(point.low, chart.percent)} to ${showValue(point.high, chart.percent)}`;
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
    strokeOpacity: faint ? (picked.client || count > 30 ? 0.2 : 0.55) : 1,
    strokeDasharray: line.dash || null,
    clip: true,
  };
  const marks = [Plot.line(line.points, { x: "x", y: "line", ...look })];
  if (line.client !== undefined) return marks;
  // Where curves run together, the marks of one are beside those of the others.
  const apart = Math.max(1, Math.floor(line.points.length / 6));
  const first = Math.floor((apart * line.place) / count);
  const seen = line.points.filter(
    (point, i) => inside(point) && point.value === point.y && (chart.markers || i % apart === first),
  );
  marks.push(
    Plot.dot(seen, {
      x: "x",
      y: "y",
      r: 4,
      symbol: symbol(line.mark),
      stroke,
      fill: line.hollow ? css("paper") : stroke,
    }),
  );
  return marks;
}
