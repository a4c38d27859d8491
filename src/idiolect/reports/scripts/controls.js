// What a reader can change about a figure. All of it is reached by keyboard.

function choice(label, options, chosen, changed) {
  const select = element("select", { onchange: () => changed(select.value) });
  for (const [value, words] of options) {
    select.append(element("option", { value, selected: value === chosen }, words));
  }
  return element("label", { class: "choice" }, `${label} `, select);
}

// The line and the mark of a series, or a patch of colour.
function swatch(look) {
  const colour = `var(--${look.colour})`;
  if (!look.mark)
    return `<svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" style="fill:${colour}"/></svg>`;
  const fill = look.hollow ? "var(--paper)" : colour;
  return `<svg viewBox="-15 -6 30 12" width="30" height="12" aria-hidden="true"><path d="M-15 0H15" style="stroke:${colour};stroke-width:${look.width};stroke-dasharray:${look.dash || "none"}"/><path d="${look.mark}" transform="scale(.9)" style="fill:${fill};stroke:${colour}"/></svg>`;
}

// A button for each that can be shown or hidden, and one for all of them.
function legend(items, hidden, changed) {
  const box = element("div", { class: "legend", role: "group", "aria-label": "what is shown" });
  const buttons = items.map((item) => {
    const pressed = String(!hidden.has(item.name));
    const button = element("button", {
      type: "button",
      "aria-pressed": pressed,
      onclick: () => toggle(item.name),
    });
    button.innerHTML = swatch(item);
    button.append(` ${item.name}`);
    return button;
  });
  const all = element(
    "button",
    { type: "button", class: "all", onclick: () => showAll() },
    hidden.size ? "show all" : "hide all",
  );
  function update() {
    items.forEach((item, place) =>
      buttons[place].setAttribute("aria-pressed", String(!hidden.has(item.name))),
    );
    all.textContent = hidden.size ? "show all" : "hide all";
    changed();
  }
  function toggle(name) {
    if (!hidden.delete(name)) hidden.add(name);
    update();
  }
  function showAll() {
    if (hidden.size) hidden.clear();
    else items.forEach((item) => hidden.add(item.name));
    update();
  }
  box.append(...buttons, ...(items.length > 3 ? [all] : []));
  return box;
}

// Buttons that do what a drag over the figure does; `zoom` moves the ends of its axes.
function zoomButtons(zoom) {
  const box = element("div", { class: "zoom", role: "group", "aria-label": "zoom" });
  const button = (words, sign, action) =>
    element("button", { type: "button", "aria-label": words, title: words, onclick: action }, sign);
  const pans = [
    button("move left", "←", () => zoom.move(-1, 0)),
    button("move right", "→", () => zoom.move(1, 0)),
    ...(zoom.both
      ? [button("move up", "↑", () => zoom.move(0, 1)), button("move down", "↓", () => zoom.move(0, -1))]
      : []),
  ];
  const reset = button("reset zoom", "reset", () => zoom.reset());
  const enlarge = button("zoom in", "+", () => zoom.scale(0.5));
  box.append(
    enlarge,
    button("zoom out", "−", () => zoom.scale(2)),
    ...pans,
    reset,
  );
  zoom.changed = (zoomed) => {
    for (const each of [...pans, reset]) each.disabled = !zoomed;
  };
  zoom.changed(false);
  return box;
}

// Which client is picked, the same in all figures of the page; they listen for the event "pick".
const picked = { client: "" };

function pickClient(client) {
  picked.client = client;
  markClient(client);
  document.dispatchEvent(new CustomEvent("pick"));
}

function clientPicker(clients) {
  const options = [
    ["", "none"],
    ...[...clients]
      .sort((a, b) => a.localeCompare(b, undefined, { numeric: true }))
      .map((name) => [name, name]),
  ];
  const label = choice("Highlight client", options, picked.client, pickClient);
  const select = label.querySelector("select");
  document.addEventListener("pick", () => {
    select.value = clients.includes(picked.client) ? picked.client : "";
  });
  return label;
}
