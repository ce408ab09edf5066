"use strict";
// Each panel of a figure is one plot, drawn when it comes near the window. State in, plot out: every switch changes
// the state and draws again.
(() => {
  const COLOURS = 10;
  const DASH = { dashed: "dash", dotted: "dot" };
  const CONFIG = {
    displaylogo: false,
    responsive: true,
    // these and no others: by default plotly offers to send the numbers to its makers
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    showSendToCloud: false,
    plotlyServerURL: "",
  };
  const touch = matchMedia("(pointer: coarse)").matches;
  const drawn = [];

  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };

  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  // null leaves a gap: plotly would lead a line to the edge of a log axis for a zero
  const shown = (value, scale) => (finite(value) === null || (scale === "log" && value <= 0) ? null : value);
  const groupOf = (series) => series.group || series.name;

  function axis(label, scale, range) {
    const log = scale === "log";
    const fits = Array.isArray(range) && range.every((end) => shown(end, scale) !== null);
    return {
      type: log ? "log" : "linear",
      title: { text: escape(label), standoff: 8 },
      ...(fits ? { range: log ? range.map(Math.log10) : range } : { autorange: true }),
      exponentformat: "power",
      automargin: true,
      zeroline: false,
      showline: true,
      ticks: "outside",
      ticklen: 4,
      nticks: 7,
      gridcolor: colour("line"),
      linecolor: colour("edge"),
      tickcolor: colour("edge"),
    };
  }

  function trace(panel, series, state) {
    const ink = colour(`s${state.colours.get(groupOf(series))}`);
    const exact = (value) => escape(String(value));
    return {
      type: "scatter",
      name: escape(series.name),
      x: series.x.map((value) => shown(value, state.x)),
      y: series.y.map((value) => shown(value, state.y)),
      mode: { points: "markers", both: "lines+markers" }[series.style] || "lines",
      line: { color: ink, width: 2, dash: DASH[series.style] || "solid" },
      marker: { color: ink, size: 6 },
      visible: !state.hidden.has(groupOf(series)),
      hoverinfo: "text",
      hovertext: series.x.map(
        (x, i) =>
          `<b>${escape(series.name)}</b><br>${escape(panel.x_label)}: ${exact(x)}<br>` +
          `${escape(panel.y_label)}: ${exact(series.y[i])}`,
      ),
      hoverlabel: { bordercolor: ink },
    };
  }

  // What all plots share.
  function frame() {
    return {
      margin: { l: 8, r: 12, t: touch ? 32 : 14, b: 8 }, // a finger cannot hover, so its buttons always show
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("muted") },
    };
  }

  function layout(panel, state) {
    return {
      ...frame(),
      xaxis: axis(panel.x_label, state.x, null),
      yaxis: axis(panel.y_label, state.y, panel.y_range),
      uirevision: state.x + state.y, // a zoom outlives a change of colours, not one of scales
      hovermode: "closest",
      dragmode: touch ? false : "zoom", // a finger scrolls the page
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("accent") },
      hoverlabel: { bgcolor: colour("surface"), font: { color: colour("ink"), size: 13 }, align: "left", namelength: -1 },
    };
  }

  // What the axes cannot show is said in words: infinities, and on a log axis what is not positive.
  function missing(panel, state) {
    const outside = (x, y) => shown(x, state.x) === null || shown(y, state.y) === null;
    const lines = panel.series
      .filter((series) => !state.hidden.has(groupOf(series)))
      .map((series) => [series.name, series.x.filter((x, i) => outside(x, series.y[i])).length])
      .filter(([, count]) => count);
    if (!lines.length) return "";
    const points = lines.reduce((sum, [, count]) => sum + count, 0);
    const names = lines.length > 3 ? `${lines.length} lines` : lines.map(([name]) => name).join(", ");
    const reason = [state.x, state.y].includes("log") ? "zero, negative or not finite" : "not finite";
    return `${points} point${points > 1 ? "s" : ""} not on these axes (${reason}): ${names}`;
  }

  function legend(panel, state, render) {
    const groups = new Map();
    panel.series.forEach((series) => groups.set(groupOf(series), [...(groups.get(groupOf(series)) || []), series]));
    const box = make("div", { className: "legend" });
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "lines");
    const buttons = new Map();
    const show = () => {
      buttons.forEach((button, group) => button.setAttribute("aria-pressed", String(!state.hidden.has(group))));
      render();
    };
    groups.forEach((members, group) => {
      const entries = members.map((series) => {
        const swatch = make("i", { className: `swatch ${series.style}` });
        return make("span", {}, swatch, series.name);
      });
      const button = make("button", { type: "button", title: "click: hide or show; double click: only this" }, ...entries);
      button.style.setProperty("--series", `var(--s${state.colours.get(group)})`);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        if (!state.hidden.delete(group)) state.hidden.add(group);
        show();
      });
      button.addEventListener("dblclick", () => {
        const alone = state.hidden.size === groups.size - 1 && !state.hidden.has(group);
        state.hidden = new Set(alone ? [] : [...groups.keys()].filter((other) => other !== group));
        show();
      });
      buttons.set(group, button);
      box.append(button);
    });
    return box;
  }

  function drawPanel(panel) {
    const state = { x: panel.x_scale, y: panel.y_scale, hidden: new Set(), colours: new Map() };
    panel.series.forEach((series) => {
      const group = groupOf(series);
      if (!state.colours.has(group)) state.colours.set(group, state.colours.size % COLOURS);
    });
    const plot = make("div", { className: "plot" });
    const note = make("p", { className: "missing" });
    const render = () => {
      note.textContent = missing(panel, state);
      const traces = panel.series.map((series) => trace(panel, series, state));
      return Plotly.react(plot, traces, layout(panel, state), CONFIG);
    };
    const scale = (name) => {
      const button = make("button", { type: "button", textContent: `log ${name}` });
      button.setAttribute("aria-pressed", String(state[name] === "log"));
      button.addEventListener("click", () => {
        state[name] = state[name] === "log" ? "linear" : "log";
        button.setAttribute("aria-pressed", String(state[name] === "log"));
        render();
      });
      return button;
    };
    const head = make("div", { className: "head" }, make("b", { textContent: panel.title }), scale("x"), scale("y"));
    const box = make("div", { className: "panel" }, head, plot, legend(panel, state, render), note);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", `${panel.title}: ${panel.y_label} against ${panel.x_label}`);
    return [box, render];
  }

  // Rows of small grey images as one heat map; ink and paper are those of the theme.
  function drawImages(panel) {
    const plot = make("div", { className: "plot" });
    const middle = (label, row) => row * (panel.height + 1) + (panel.height - 1) / 2;
    const bare = { showgrid: false, zeroline: false, fixedrange: true };
    const render = () => {
      const scale = [[0, colour("surface")], [1, colour("ink")]];
      const image = { type: "heatmap", z: panel.pixels, zmin: 0, zmax: 255, colorscale: scale, showscale: false };
      const axes = {
        xaxis: { ...bare, visible: false, constrain: "domain" },
        yaxis: {
          ...bare,
          autorange: "reversed",
          scaleanchor: "x",
          constrain: "domain",
          automargin: true,
          tickvals: panel.labels.map(middle),
          ticktext: panel.labels.map(escape),
        },
      };
      const bars = { ...CONFIG, displayModeBar: false };
      return Plotly.react(plot, [{ ...image, hoverinfo: "skip" }], { ...frame(), ...axes, dragmode: false }, bars);
    };
    const head = make("div", { className: "head" }, make("b", { textContent: panel.title }));
    const box = make("div", { className: "panel" }, head, plot);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${panel.title}: images, ${panel.labels.join(", ")}`);
    return [box, render];
  }

  function draw(place) {
    const data = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    const panels = data.panels.map((panel) => (panel.pixels ? drawImages : drawPanel)(panel));
    place.closest("figure").classList.add("drawn");
    place.append(...panels.map(([box]) => box));
    panels.forEach(([, render]) => {
      drawn.push(render);
      render();
    });
  }

  const near = new IntersectionObserver(
    (entries) =>
      entries
        .filter((entry) => entry.isIntersecting)
        .forEach((entry) => {
          near.unobserve(entry.target);
          draw(entry.target.querySelector("[data-figure]"));
        }),
    { rootMargin: "300px 0px" },
  );
  document.querySelectorAll("figure:has([data-figure])").forEach((figure) => near.observe(figure));
  theme.onchange(() => drawn.forEach((render) => render()));
})();
