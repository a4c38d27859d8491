// HeatMap and Bars.

// Colours begin at zero, so that amounts that hardly differ look alike.
function heatEnds(chart) {
  const [low, high] = d3.extent(chart.values.flat());
  return [Math.min(0, low ?? 0), high];
}

function heatColour(chart, value, [low, high]) {
  if (chart.categorical) return css(`series-${((value % 9) + 9) % 9}`);
  const share = high > low ? (value - low) / (high - low) : 1;
  return `color-mix(in oklab, var(--heat) ${Math.round(100 * share)}%, var(--panel))`;
}

// The ends of an axis of cells: as they are zoomed to, but with room for one cell, and not beyond the edges.
function cellEnds(zoomed, count) {
  const [low, high] = d3.extent(zoomed ?? [0, count]);
  const size = within(high - low, [1, count]);
  const first = within(low, [0, count - size]);
  return [first, first + size];
}

// The cells that are seen between two ends, in part or wholly.
function cellsBetween([low, high]) {
  return d3.range(Math.floor(low), Math.ceil(high));
}

// Cells are a unit wide and high, so that the axes zoom as those of numbers do.
function heatMapPlot(chart, state, width) {
  const ends = heatEnds(chart);
  const { left } = names(chart.rows, width);
  const height = Math.max(3, Math.min(20, 520 / chart.rows.length)) * chart.rows.length;
  const across = cellEnds(state.zoom.x, chart.columns.length);
  const down = cellEnds(state.zoom.y, chart.rows.length);
  const cells = cellsBetween(down).flatMap((i) =>
    cellsBetween(across).map((j) => {
      const value = chart.values[i][j];
      return {
        ...{ x: j + 0.5, x1: j, x2: j + 1, y: i + 0.5, y1: i, y2: i + 1 },
        fill: value === null ? "none" : heatColour(chart, value, ends),
        tip: `${chart.rowLabel} ${chart.rows[i]}\n${chart.columnLabel} ${chart.columns[j]}\n${chart.valueLabel} ${showNumber(value)}`,
      };
    }),
  );
  const letters = Math.floor((left - 14) / TEXT);
  const widest = Math.max(...chart.columns.map((name) => name.length)) * TEXT + 10;
  const cell = [(width - left) / (across[1] - across[0]), height / (down[1] - down[0])]; // in pixels
  const middles = ([low, high]) =>
    cellsBetween([low, high])
      .map((place) => place + 0.5)
      .filter((middle) => low <= middle && middle <= high);
  const picks = middles(down).filter((middle) => chart.rows[Math.floor(middle)] === picked.client);
  return {
    ...common(chart, width, height + 70, left),
    marginBottom: 46,
    x: {
      domain: across,
      ticks: some(middles(across), Math.max(2, Math.floor((width - left) / widest))),
      label: chart.columnLabel,
      labelArrow: "none",
      tickFormat: (middle) => shorten(chart.columns[Math.floor(middle)], 12),
    },
    y: {
      domain: [...down].reverse(),
      ticks: some(middles(down), Math.floor(height / 13) || 1),
      label: chart.rowLabel,
      labelAnchor: "top",
      labelArrow: "none",
      tickFormat: (middle) => shorten(chart.rows[Math.floor(middle)], letters),
      tickSize: 0,
    },
    marks: [
      Plot.rect(cells, {
        ...{ x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "fill" },
        inset: Math.min(...cell) > 8 ? 0.5 : 0,
        clip: true,
      }),
      Plot.ruleY(picks, { stroke: css("ink"), strokeWidth: 2, strokeDasharray: "4,3" }),
      tip(cells, { maxRadius: Math.max(30, Math.hypot(...cell) / 2) }),
    ],
  };
}

function barsPlot(chart, state, width) {
  const parts = chart.parts.map((part, i) => ({ ...part, i })).filter((part) => !state.hidden.has(part.name));
  const { left } = names(
    chart.groups.map((group) => group.name),
    width,
  );
  const letters = Math.floor((left - 14) / TEXT);
  const pieces = chart.groups.flatMap((group) => {
    let from = 0;
    return parts.map((part) => {
      const piece = {
        y: group.name,
        from,
        to: from + (group.values[part.i] ?? 0),
        colour: css(part.colour),
        tip: `${group.name}\n${part.name}\n${showNumber(group.values[part.i])} ${chart.label}`,
      };
      from = piece.to;
      return { ...piece, x: (piece.from + piece.to) / 2 };
    });
  });
  const filled = pieces.filter((piece) => piece.to > piece.from);
  return {
    ...common(chart, width, 28 * chart.groups.length + 64, left),
    x: { ...valueScale({ label: chart.label }, [0, d3.max(pieces, (piece) => piece.to) || 1], width, false) },
    y: {
      type: "band",
      domain: chart.groups.map((group) => group.name),
      label: null,
      padding: 0.3,
      tickSize: 0,
      tickFormat: (name) => shorten(name, letters),
    },
    marks: [
      Plot.barX(filled, {
        x1: "from",
        x2: "to",
        y: "y",
        fill: "colour",
        stroke: css("paper"),
        strokeWidth: 0.5,
      }),
      tip(filled),
    ],
  };
}
