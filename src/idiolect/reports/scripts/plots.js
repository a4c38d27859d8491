// What drawings have in common. A plot is a function of a chart, the reader's choices and a width that returns the
// options of Plot.plot; `zoom` are the ends of the axes, null where they are those of the chart.

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
    style: {
      background: "transparent",
      color: "inherit",
      fontSize: "12px",
      fontFamily: "inherit",
      "--plot-background": "var(--panel)",
    },
    color: { type: "identity" },
  };
}

function tip(points, more = {}) {
  return Plot.tip(
    points,
    Plot.pointer({ x: "x", y: "y", title: "tip", maxRadius: 60, fontSize: 12, lineWidth: 24, ...more }),
  );
}

// A method's mark for Plot, from the corners of its path.
function symbol(path) {
  const corners = path
    .slice(1, -1)
    .split("L")
    .map((pair) => pair.split(" ").map(Number));
  return {
    draw(context, size) {
      const scale = Math.sqrt(size / Math.PI) / 5;
      corners.forEach(([x, y], place) =>
        place ? context.lineTo(scale * x, scale * y) : context.moveTo(scale * x, scale * y),
      );
      context.closePath();
    },
  };
}

// At 1, 2 and 5 times powers of ten, or at powers of ten alone, as room.py has them.
function logTicks([low, high], most) {
  const fine = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const digit of [1, 2, 5]) fine.push(Number(`${digit}e${power}`));
  }
  const inside = fine.filter((tick) => tick >= low && tick <= high);
  const decades = inside.filter((tick) => String(tick.toExponential()).startsWith("1e"));
  return inside.length <= most || decades.length < 2 ? some(inside, most) : some(decades, most);
}

// An axis whose ticks all have their labels: of a logarithmic scale Plot would leave some out.
function logAxis(axis, { ticks, tickFormat, label }) {
  return axis(ticks, { text: (tick) => tickFormat(tick), label });
}

function within(value, [low, high]) {
  return Math.min(Math.max(value, low), high);
}

// Names beside the plot, in at most two fifths of the width.
function names(items, width) {
  const letters = Math.min(
    Math.max(...items.map((name) => name.length), 4),
    Math.floor((0.38 * width) / TEXT),
  );
  return {
    left: Math.ceil(letters * TEXT) + 14,
    show: (place) => (items[place] === undefined ? "" : shorten(items[place], letters)),
  };
}

// A row for each name, from top to bottom.
function rowScale(items, show) {
  const ticks = d3.range(items.length);
  return {
    domain: [-0.6, items.length - 0.4],
    reverse: true,
    ticks,
    tickFormat: show,
    label: null,
    tickSize: 0,
  };
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
