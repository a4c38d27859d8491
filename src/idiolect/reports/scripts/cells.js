// HeatMap and Bars.

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
    row.map((value, j) => ({
      x: chart.columns[j],
      y: chart.rows[i],
      value,
      fill: value === null ? "none" : heatColour(chart, value, ends),
      tip: `${chart.rowLabel} ${chart.rows[i]}\n${chart.columnLabel} ${chart.columns[j]}\n${chart.valueLabel} ${showNumber(value)}`,
    })),
  );
  const letters = Math.floor((left - 14) / TEXT);
  const widest = Math.max(...chart.columns.map((name) => name.length)) * TEXT + 10;
  const picks = cells.filter((cell) => cell.y === picked.client && cell.x === chart.columns[0]);
  return {
    ...common(chart, width, height * chart.rows.length + 70, left),
    marginBottom: 46,
    x: {
      type: "band",
      domain: chart.columns,
      ticks: some(chart.columns, Math.max(2, Math.floor((width - left) / widest))),
      label: chart.columnLabel,
      padding: 0,
      tickFormat: (name) => shorten(name, 12),
    },
    y: {
      type: "band",
      domain: chart.rows,
      ticks: some(chart.rows, Math.floor((height * chart.rows.length) / 13) || 1),
      label: chart.rowLabel,
      labelAnchor: "top",
      labelArrow: "none",
      padding: 0,
      tickFormat: (name) => shorten(name, letters),
      tickSize: 0,
    },
    marks: [
      Plot.cell(cells, { x: "x", y: "y", fill: "fill", inset: height > 8 ? 0.5 : 0 }),
      Plot.ruleY(picks, { y: "y", stroke: css("ink"), strokeWidth: 2, strokeDasharray: "4,3" }),
      tip(cells, { maxRadius: 30 }),
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
