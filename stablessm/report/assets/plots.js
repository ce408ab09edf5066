"use strict";
// Draws figures as SVG. A panel keeps its state (scales, hidden lines, zoom), and every switch draws it again. Colors are
// style sheet variables, so that a change of theme needs no drawing.
(() => {
  const COLORS = 10;
  const NS = "http://www.w3.org/2000/svg";
  let clips = 0;

  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const svg = (tag, attributes = {}, ...children) => {
    const node = document.createElementNS(NS, tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...children);
    return node;
  };
  const group = (box, role, label) => {
    box.setAttribute("role", role);
    box.setAttribute("aria-label", label);
    return box;
  };
  // what an axis cannot show is a gap in the line
  const shown = (value, scale) => Number.isFinite(value) && !(scale === "log" && value <= 0);
  const groupOf = (series) => series.group || series.name;

  function label(value) {
    if (value === 0) return "0";
    const exponent = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    if (exponent >= -3 && exponent < 5) return String(Number(value.toPrecision(4))).replace("-", "−");
    const factor = Number((value / 10 ** exponent).toPrecision(3));
    const power = String(exponent).replace(/./g, (digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]));
    return `${factor === 1 ? "" : `${factor}·`}10${power}`.replace("-", "−");
  }

  function ticks(low, high, scale, most) {
    const found = [];
    if (scale === "log") {
      const decades = Math.log10(high / low);
      const step = Math.max(1, Math.ceil(decades / most));
      const factors = decades < 1 ? [1, 2, 3, 4, 5, 6, 7, 8] : decades < most / 2 ? [1, 2, 5] : [1];
      for (let power = Math.floor(Math.log10(low) / step) * step; power <= Math.log10(high); power += step)
        factors.forEach((factor) => found.push(factor * 10 ** power));
    } else {
      const raw = (high - low) / most;
      const unit = 10 ** Math.floor(Math.log10(raw));
      const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw);
      for (let tick = Math.ceil(low / step); tick * step <= high; tick += 1) found.push(tick * step);
    }
    return found.filter((tick) => tick >= low && tick <= high);
  }

  // The numbers of an axis and the function from numbers to pixels, and back.
  function axis(values, scale, range, from, to) {
    const log = scale === "log";
    const [forth, back] = log ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
    let [low, high] = range && range.every((end) => shown(end, scale)) ? range.map(forth) : [Infinity, -Infinity];
    if (!(low < high)) {
      [low, high] = [Infinity, -Infinity];
      values.filter((value) => shown(value, scale)).forEach((value) => {
        low = Math.min(low, forth(value));
        high = Math.max(high, forth(value));
      });
      if (low > high) [low, high] = [0, 1];
      const margin = 0.04 * (high - low) || (log ? 0.5 : Math.abs(low) / 2 || 1);
      [low, high] = [low - margin, high + margin];
    }
    return {
      low: back(low),
      high: back(high),
      place: (value) => from + ((forth(value) - low) / (high - low)) * (to - from),
      value: (pixel) => back(low + ((pixel - from) / (to - from)) * (high - low)),
    };
  }

  function path(series, x, y, state) {
    let pen = "M";
    return series.x
      .map((value, i) => {
        if (!shown(value, state.x) || !shown(series.y[i], state.y)) {
          pen = "M";
          return "";
        }
        const point = `${pen}${x.place(value).toFixed(1)} ${y.place(series.y[i]).toFixed(1)}`;
        pen = "L";
        return point;
      })
      .join("");
  }

  function lines(panel, x, y, state, width) {
    return panel.series
      .filter((series) => !state.hidden.has(groupOf(series)))
      .map((series) => {
        const line = path(series, x, y, state);
        const points = ["points", "both"].includes(series.style) || !line.includes("L");
        const drawn = svg("g", { class: `series ${series.style}`, "stroke-width": width });
        drawn.style.setProperty("--series", `var(--s${state.colors.get(groupOf(series))})`);
        if (series.style !== "points") drawn.append(svg("path", { d: line }));
        if (points) drawn.append(svg("path", { class: "dots", "stroke-width": 3.4 * width, d: line.replace(/L/g, "M").replace(/(?<=\d)(?=M|$)/g, "h0") }));
        return drawn;
      });
  }

  function axes(panel, x, y, state, box) {
    const marks = svg("g", { class: "axes" });
    const text = (content, attributes) => marks.append(svg("text", attributes, content));
    ticks(x.low, x.high, state.x, Math.max(2, Math.min(7, box.width / 80))).forEach((tick) => {
      const at = x.place(tick).toFixed(1);
      marks.append(svg("path", { class: "grid", d: `M${at} ${box.top}V${box.bottom}` }));
      text(label(tick), { x: at, y: box.bottom + 16, "text-anchor": "middle" });
    });
    ticks(y.low, y.high, state.y, 6).forEach((tick) => {
      const at = y.place(tick).toFixed(1);
      marks.append(svg("path", { class: "grid", d: `M${box.left} ${at}H${box.right}` }));
      text(label(tick), { x: box.left - 6, y: Number(at) + 4, "text-anchor": "end" });
    });
    marks.append(svg("path", { class: "edge", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }));
    text(panel.x_label, { x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle", class: "name" });
    const turned = `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`;
    text(panel.y_label, { transform: turned, "text-anchor": "middle", class: "name" });
    return marks;
  }

  // One panel as an SVG of this size; a bare one has lines only.
  function draw(panel, state, width, height, bare = false) {
    const box = bare
      ? { left: 6, right: width - 6, top: 6, bottom: height - 6, width }
      : { left: 70, right: width - 10, top: 10, bottom: height - 44, width };
    const visible = panel.series.filter((series) => !state.hidden.has(groupOf(series)));
    const pairs = visible.flatMap((series) =>
      series.x.map((value, i) => [value, series.y[i]]).filter(([a, b]) => shown(a, state.x) && shown(b, state.y)),
    );
    const zoom = state.zoom || { y: state.y === panel.y_scale ? panel.y_range : null };
    const x = axis(pairs.map((pair) => pair[0]), state.x, zoom.x, box.left, box.right);
    const y = axis(pairs.map((pair) => pair[1]), state.y, zoom.y, box.bottom, box.top);
    const clip = `clip-${(clips += 1)}`;
    const inside = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    const curves = svg("g", { "clip-path": `url(#${clip})` }, ...lines(panel, x, y, state, bare ? 1.4 : 2));
    const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": true });
    image.append(svg("clipPath", { id: clip }, svg("rect", inside)), bare ? "" : axes(panel, x, y, state, box), curves);
    return Object.assign(image, { axes: { x, y, inside } });
  }

  function begin(panel) {
    const colors = new Map();
    panel.series.forEach((series) => colors.has(groupOf(series)) || colors.set(groupOf(series), colors.size % COLORS));
    return { x: panel.x_scale, y: panel.y_scale, hidden: new Set(), zoom: null, colors };
  }

  // The notice below a plot: how many points its axes cannot show.
  function missing(panel, state) {
    const outside = (x, y) => !shown(x, state.x) || !shown(y, state.y);
    const counts = panel.series
      .filter((series) => !state.hidden.has(groupOf(series)))
      .map((series) => [series.name, series.x.filter((x, i) => outside(x, series.y[i])).length])
      .filter(([, count]) => count);
    if (!counts.length) return "";
    const points = counts.reduce((sum, [, count]) => sum + count, 0);
    const names = counts.length > 3 ? `${counts.length} lines` : counts.map(([name]) => name).join(", ");
    const reason = [state.x, state.y].includes("log") ? "zero, negative or not finite" : "not finite";
    return `${points} point${points > 1 ? "s" : ""} not shown (${reason}): ${names}`;
  }

  function legend(panel, state, render) {
    const groups = new Map();
    panel.series.forEach((series) => groups.set(groupOf(series), [...(groups.get(groupOf(series)) || []), series]));
    const box = group(make("div", { className: "legend" }), "group", "lines");
    const buttons = new Map();
    const show = () => {
      buttons.forEach((button, name) => button.setAttribute("aria-pressed", String(!state.hidden.has(name))));
      render();
    };
    groups.forEach((members, name) => {
      const entries = members.map((series) => make("span", {}, make("i", { className: `swatch ${series.style}` }), series.name));
      const button = make("button", { type: "button", title: "Click to hide or show, double click to show only this" }, ...entries);
      button.style.setProperty("--series", `var(--s${state.colors.get(name)})`);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        if (!state.hidden.delete(name)) state.hidden.add(name);
        show();
      });
      button.addEventListener("dblclick", () => {
        const alone = state.hidden.size === groups.size - 1 && !state.hidden.has(name);
        state.hidden = new Set(alone ? [] : [...groups.keys()].filter((other) => other !== name));
        show();
      });
      buttons.set(name, button);
      box.append(button);
    });
    return box;
  }

  // The exact numbers of the point nearest to the pointer.
  function hover(plot, panel, state) {
    const tip = make("div", { className: "tip", hidden: true });
    const dot = svg("circle", { r: 5, class: "dot" });
    plot.addEventListener("pointermove", (event) => {
      const image = plot.querySelector("svg");
      const bounds = image.getBoundingClientRect();
      const [left, top] = [event.clientX - bounds.left, event.clientY - bounds.top];
      let best = { distance: 40 };
      panel.series.forEach((series) => {
        if (state.hidden.has(groupOf(series))) return;
        series.x.forEach((value, i) => {
          if (!shown(value, state.x) || !shown(series.y[i], state.y)) return;
          const at = [image.axes.x.place(value), image.axes.y.place(series.y[i])];
          const distance = Math.hypot(at[0] - left, at[1] - top);
          if (distance < best.distance) best = { distance, at, series, i };
        });
      });
      tip.hidden = !best.series;
      dot.remove();
      if (!best.series) return;
      dot.style.setProperty("--series", `var(--s${state.colors.get(groupOf(best.series))})`);
      dot.setAttribute("cx", best.at[0]);
      dot.setAttribute("cy", best.at[1]);
      image.append(dot);
      const { series, i } = best;
      const rows = [[panel.x_label, series.x[i]], [panel.y_label, series.y[i]]];
      tip.replaceChildren(make("b", { textContent: series.name }), ...rows.map(([name, value]) => make("span", { textContent: `${name}: ${value}` })));
      const right = best.at[0] > bounds.width / 2;
      tip.style.cssText = `top:${best.at[1]}px;${right ? `right:${bounds.width - best.at[0] + 12}px` : `left:${best.at[0] + 12}px`}`;
    });
    plot.addEventListener("pointerleave", () => {
      tip.hidden = true;
      dot.remove();
    });
    return tip;
  }

  // A mouse drags a rectangle to zoom in; a finger scrolls the page.
  function drag(plot, state, render) {
    let start = null;
    let frame = null;
    const corners = (event) => {
      const bounds = plot.querySelector("svg").getBoundingClientRect();
      const now = [event.clientX - bounds.left, event.clientY - bounds.top];
      return [0, 1].map((i) => [Math.min(start[i], now[i]), Math.max(start[i], now[i])]);
    };
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button) return;
      const bounds = plot.querySelector("svg").getBoundingClientRect();
      start = [event.clientX - bounds.left, event.clientY - bounds.top];
      frame = plot.querySelector("svg").appendChild(svg("rect", { class: "frame-of-zoom" }));
      plot.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    plot.addEventListener("pointermove", (event) => {
      if (!start) return;
      const [[left, right], [top, bottom]] = corners(event);
      Object.entries({ x: left, y: top, width: right - left, height: bottom - top }).forEach((entry) => frame.setAttribute(...entry));
    });
    plot.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [[left, right], [top, bottom]] = corners(event);
      const { x, y } = plot.querySelector("svg").axes;
      start = null;
      frame.remove();
      if (right - left < 8 || bottom - top < 8) return;
      state.zoom = { x: [x.value(left), x.value(right)], y: [y.value(bottom), y.value(top)] };
      render();
    });
  }

  function drawPanel(panel) {
    const state = begin(panel);
    const plot = make("div", { className: "plot" });
    const note = make("p", { className: "missing" });
    const reset = make("button", { type: "button", textContent: "reset zoom" });
    const tip = hover(plot, panel, state);
    const render = () => {
      if (!plot.clientWidth) return;
      note.textContent = missing(panel, state);
      reset.hidden = !state.zoom;
      plot.replaceChildren(draw(panel, state, plot.clientWidth, plot.clientHeight), tip);
    };
    const unzoom = () => {
      state.zoom = null;
      render();
    };
    reset.addEventListener("click", unzoom);
    plot.addEventListener("dblclick", unzoom);
    drag(plot, state, render);
    const scale = (name) => {
      const button = make("button", { type: "button", textContent: `log ${name}` });
      button.setAttribute("aria-pressed", String(state[name] === "log"));
      button.addEventListener("click", () => {
        state[name] = state[name] === "log" ? "linear" : "log";
        button.setAttribute("aria-pressed", String(state[name] === "log"));
        unzoom();
      });
      return button;
    };
    const head = make("div", { className: "head" }, make("b", { textContent: panel.title }), reset, scale("x"), scale("y"));
    const box = make("div", { className: "panel" }, head, plot, legend(panel, state, render), note);
    let width = 0;
    new ResizeObserver(() => {
      if (plot.clientWidth !== width) render();
      width = plot.clientWidth;
    }).observe(plot);
    return [group(box, "group", `${panel.title}: ${panel.y_label} against ${panel.x_label}`), render];
  }

  // Rows of small gray images; the style sheet inverts them in the dark theme.
  function mosaic(panel) {
    const [height, width] = [panel.pixels.length, panel.pixels[0].length];
    const canvas = make("canvas", { width, height });
    const ink = new ImageData(width, height);
    panel.pixels.flat().forEach((level, i) => (ink.data[4 * i + 3] = level));
    canvas.getContext("2d").putImageData(ink, 0, 0);
    return canvas;
  }

  function drawImages(panel) {
    const labels = panel.labels.map((name) => make("span", { textContent: name }));
    const rows = make("div", { className: "mosaic" }, make("div", { className: "rows" }, ...labels), mosaic(panel));
    const box = make("div", { className: "panel" }, make("div", { className: "head" }, make("b", { textContent: panel.title })), rows);
    return [group(box, "img", `${panel.title}: images, ${panel.labels.join(", ")}`), () => {}];
  }

  const numbers = (values) => values.map((value) => (typeof value === "string" ? { inf: Infinity, "-inf": -Infinity }[value] ?? NaN : value));
  const kept = new Map();
  function figure(name) {
    if (!kept.has(name)) {
      const data = JSON.parse(document.getElementById(name).textContent);
      data.panels.forEach((panel) => (panel.series || []).forEach((s) => Object.assign(s, { x: numbers(s.x), y: numbers(s.y) })));
      kept.set(name, data);
    }
    return kept.get(name);
  }

  function fill(place) {
    if (place.childElementCount) return;
    const { figure: name, panels: which, thumbnail } = place.dataset;
    let { panels } = figure(name);
    if (thumbnail !== undefined) {
      const panel = panels[0];
      place.append(panel.pixels ? mosaic(panel) : draw(panel, begin(panel), 230, 180, true));
      return;
    }
    if (which) panels = which.split(" ").map((number) => panels[number]).filter(Boolean);
    const made = panels.map((panel) => (panel.pixels ? drawImages : drawPanel)(panel));
    place.append(...made.map(([box]) => box));
    made.forEach(([, render]) => render());
  }

  const places = document.querySelectorAll("[data-figure]");
  const near = new IntersectionObserver(
    (entries) =>
      entries
        .filter((entry) => entry.isIntersecting)
        .forEach((entry) => {
          near.unobserve(entry.target);
          fill(entry.target);
        }),
    { rootMargin: "300px 0px" },
  );
  places.forEach((place) => near.observe(place));
  addEventListener("beforeprint", () => places.forEach(fill));
})();
