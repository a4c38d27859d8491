// Numbers and names as people read them, as in quantities.py.

const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, "%": 1, min: 60, h: 3600 };

function showNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 1e308) return value > 0 ? "∞" : "−∞";
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  const text = size !== 0 && (size < 1e-4 || size >= 1e9) ? rounded.toExponential() : String(rounded);
  return text.replace("-", "−");
}

function showValue(value, percent) {
  return percent && value !== null && Math.abs(value) < 1e308
    ? `${(100 * value).toFixed(1).replace("-", "−")} %`
    : showNumber(value);
}

function showGain(value, percent) {
  if (value === null || Math.abs(value) >= 1e308) return showNumber(value);
  const text = percent ? `${Math.abs(100 * value).toFixed(1)} points` : showNumber(Math.abs(value), 3);
  return (/[1-9]/.test(text) ? (value > 0 ? "+" : "−") : "") + text;
}

// A tick of an axis of shares: as short as its neighbours let it be.
function showShare(value) {
  return `${showNumber(100 * value, 3)} %`;
}

// What a cell says as a number, "1.2 kB" too; null if it is no number.
function readNumber(text) {
  const found = text
    .trim()
    .replace(/−/g, "-")
    .match(/^([+-]?)(∞|[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([a-zA-Z%]*)/);
  if (!found) return null;
  const size = found[2] === "∞" ? Infinity : Number(found[2].replace(/,/g, ""));
  return (found[1] === "-" ? -size : size) * (UNITS[found[3]] ?? 1);
}

// Both ends of a name stay, since names differ at one of them.
function shorten(name, letters) {
  if (name.length <= letters) return name;
  const tail = Math.floor((letters - 1) / 2);
  return `${name.slice(0, letters - 1 - tail)}…${name.slice(name.length - tail)}`;
}

// Every so many of them, not more than `most`.
function some(items, most) {
  const step = Math.ceil(items.length / most);
  return items.filter((_, place) => place % step === 0);
}
