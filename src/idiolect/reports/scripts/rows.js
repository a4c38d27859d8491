// Spread and Intervals: rows of marks over an axis of values.

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
  const own = {
    x: "x",
    y: "y",
    symbol: symbol(model.mark),
    stroke: css(model.colour),
    fill: model.hollow ? css("paper") : css(model.colour),
    clip: false,
  };
  const isPicked = (point) => point.client === picked.client;
  return [
    Plot.dot(points, {
      ...own,
      r: points.length > 300 ? 2 : 3.5,
      fillOpacity: opacity,
      strokeOpacity: opacity,
    }),
    Plot.dot(points.filter(isPicked), { ...own, r: 6, stroke: css("ink"), strokeWidth: 2 }),
  ];
}

function outsideMarks(points) {
  return Plot.text(
    points.filter((point) => point.value !== point.x),
    {
      x: "x",
      y: "y",
      text: (point) => (point.value > point.x ? "▶" : "◀"),
      fill: "currentColor",
      fontSize: 9,
    },
  );
}

function spreadByModel(chart, state, width) {
  const models = chart.models.filter((model) => !state.hidden.has(model.name));
  const domain = state.zoom.x ?? chart.room;
  const scale = valueScale(chart, domain, width, chart.log);
  const { left, show } = names(
    models.map((model) => model.name),
    width,
  );
  const marks = [];
  const all = [];
  const inside = (point) => !state.zoom.x || (point.value >= domain[0] && point.value <= domain[1]);
  models.forEach((model, row) => {
    // Clients side by side instead of on top of each other, the same one at the same height in every row.
    const points = spreadPoints(
      chart,
      model,
      domain,
      (i) => row + 0.55 * (((i * 0.618034) % 1) - 0.5),
    ).filter(inside);
    marks.push(...spreadMarks(points, model, picked.client ? 0.25 : 0.75), outsideMarks(points));
    all.push(...points);
    if (model.quartiles[0] !== null) {
      const [from, median, to] = model.quartiles.map((end) => within(end, domain));
      marks.push(Plot.ruleY([row], { x1: from, x2: to, y: row, stroke: css("ink"), strokeWidth: 2 }));
      marks.push(
        Plot.ruleX([median], {
          x: median,
          y1: row - 0.3,
          y2: row + 0.3,
          stroke: css("ink"),
          strokeWidth: 2.5,
        }),
      );
    }
  });
  marks.push(
    Plot.line(
      all.filter((point) => point.client === picked.client),
      { x: "x", y: "y", stroke: css("ink"), strokeWidth: 1 },
    ),
    tip(all),
  );
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
  const { left, show } = names(
    order.map((i) => chart.clients[i]),
    width,
  );
  const inside = (point) => !state.zoom.x || (point.value >= domain[0] && point.value <= domain[1]);
  const drawn = models.map((model) => spreadPoints(chart, model, domain, (i) => row.get(i)).filter(inside));
  const all = drawn.flat();
  const spans = d3.rollups(
    all,
    (own) => d3.extent(own, (point) => point.x),
    (point) => point.y,
  );
  const marks = [
    Plot.ruleY(spans, {
      y: (d) => d[0],
      x1: (d) => d[1][0],
      x2: (d) => d[1][1],
      stroke: css("line"),
      strokeWidth: 2,
    }),
  ];
  models.forEach((model, place) =>
    marks.push(...spreadMarks(drawn[place], model, 1), outsideMarks(drawn[place])),
  );
  marks.push(tip(all));
  return {
    ...common(chart, width, 22 * Math.max(order.length, 2) + 64, left),
    x: scale,
    y: rowScale(order, show),
    marks: [...valueAxis(scale), ...marks],
  };
}

function intervalsPlot(chart, state, width) {
  const numbers = chart.rows
    .flatMap(([, ...ends]) => ends)
    .filter((end) => end !== null && Math.abs(end) < 1e300);
  const [low, high] = d3.extent(chart.zero ? [0, ...numbers] : numbers);
  const pad = 0.04 * (high - low) || 0.5;
  const domain = state.zoom.x ?? [low - pad, high + pad];
  const { left, show } = names(
    chart.rows.map(([name]) => name),
    width,
  );
  const rows = chart.rows.map(([name, value, from, to], row) => ({
    name,
    y: row,
    x: within(value, domain),
    value,
    from: from === null ? null : within(from, domain),
    to: to === null ? null : within(to, domain),
    colour: css(
      !chart.zero || from === null || (from <= 0 && to >= 0) ? "faint" : value > 0 ? "good" : "bad",
    ),
    tip: `${name}\n${intervalText(chart, value, from, to)}`,
  }));
  const known = rows.filter((row) => row.value !== null);
  return {
    ...common(chart, width, 26 * Math.max(rows.length, 2) + 64, left),
    x: {
      ...valueScale(chart, domain, width, false),
      tickFormat: chart.percent ? (value) => showNumber(100 * value, 3) : (value) => showNumber(value),
    },
    y: rowScale(rows, show),
    marks: [
      ...(chart.zero ? [Plot.ruleX([0], { stroke: css("ink") })] : []),
      Plot.ruleY(
        known.filter((row) => row.from !== null),
        { y: "y", x1: "from", x2: "to", stroke: "colour", strokeWidth: 2.5, clip: true },
      ),
      Plot.dot(known, { x: "x", y: "y", fill: "colour", r: 5, clip: true }),
      Plot.dot(
        known.filter((row) => row.name === picked.client),
        { x: "x", y: "y", r: 8, stroke: css("ink"), strokeWidth: 2 },
      ),
      tip(known),
    ],
  };
}

function intervalText(chart, value, from, to) {
  const shown = chart.zero ? showGain : showValue;
  return (
    shown(value, chart.percent) +
    (from === null ? "" : `\n${shown(from, chart.percent)} to ${shown(to, chart.percent)}`)
  );
}
