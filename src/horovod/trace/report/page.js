// Draws the page's charts. Everything it shows is in the tables, too; texts are set as texts.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MOST_LINES = 8;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2"];
  const LEFT = 48, RIGHT = 10, TOP = 22, BOTTOM = 24;

  // Numbers for people.
  const three = (value) => (value === 0 ? "0" : String(Number(value.toPrecision(3))));
  const timeText = (seconds) => {
    if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
    if (seconds >= 60) return `${Math.floor(seconds / 60)} min${seconds % 60 >= 0.5 ? ` ${Math.round(seconds % 60)} s` : ""}`;
    return `${three(seconds)} s`;
  };
  const UNITS = {
    step: (value) => (value >= 1000 ? `${three(value / 1000)} s` : `${three(value)} ms`),
    waiting: (value) => `${three(value)} %`,
    blocked: (value) => `${three(value)} %`,
    rate: (value) => (value >= 1000 ? `${three(value / 1000)} GB/s` : `${three(value)} MB/s`),
  };

  // Elements.
  const svgNode = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const node = (name, className, text) => {
    const made = document.createElement(name);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const ticks = (low, top, count) => {
    const rough = (top - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= top + step / 1e6; at += 1) found.push(Number((at * step).toPrecision(12)));
    return found;
  };
  const TIME_STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400];
  const wholeTime = data.columnSeconds * data.columns;
  const timeTicks = (count) => {
    const step = TIME_STEPS.find((each) => wholeTime / each <= count) || Math.ceil(wholeTime / count / 86400) * 86400;
    const found = [];
    for (let value = Math.ceil(data.start / step) * step; value <= data.start + wholeTime; value += step) found.push(value);
    return found;
  };
  // Charts begin with the training; times are since the job's begin.
  const partOf = (seconds) => (seconds - data.start) / wholeTime;
  const middle = (column) => data.start + (column + 0.5) * data.columnSeconds;
  const quantile = (sorted, part) => {
    const at = part * (sorted.length - 1), low = Math.floor(at);
    return sorted[low] + (sorted[Math.ceil(at)] - sorted[low]) * (at - low);
  };

  // A frame with axes: where values and times are, in pixels.
  function frame(plot, height, low, top, unit, label = three, axis = timeAxis) {
    const width = Math.max(plot.clientWidth, 240);
    const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    const x = (seconds) => LEFT + partOf(seconds) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - ((value - low) / (top - low)) * (height - TOP - BOTTOM);
    for (const value of ticks(low, top, 5)) {
      svg.append(svgNode("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(svgNode("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label(value)));
    }
    svg.append(svgNode("text", { x: 2, y: 12 }, unit));
    axis(svg, x, height - 6, width);
    const cursor = svgNode("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    return { svg, x, y, width, height, cursor };
  }

  // A chart of columns with a cursor: `show` returns a frame and what is below, `centre` where a column is.
  function columnChart(plot, count, show, centre, tell) {
    let drawn;
    const state = { columns: () => count, rows: () => 1, point: (across) => {
      const part = (across - LEFT) / (drawn.width - LEFT - RIGHT);
      state.column = Math.min(Math.max(Math.floor(part * count), 0), count - 1);
    } };
    const place = () => {
      if (state.column === undefined) return;
      for (const name of ["x1", "x2"]) drawn.cursor.setAttribute(name, centre(drawn, state.column));
      drawn.cursor.setAttribute("visibility", "visible");
    };
    steer(plot, state, () => { place(); return tell(state.column); });
    return () => {
      let below;
      [drawn, below] = show();
      drawn.svg.append(drawn.cursor);
      plot.replaceChildren(drawn.svg, below);
      place();
    };
  }

  function timeAxis(svg, x, baseline, width) {
    for (const seconds of timeTicks(Math.max(2, Math.floor(width / 90)))) {
      const at = x(seconds), anchor = at < LEFT + 12 ? "start" : at > width - 40 ? "end" : "middle";
      svg.append(svgNode("text", { x: at, y: baseline, "text-anchor": anchor }, timeText(seconds)));
    }
  }

  function marks(svg, x, top, bottom) {
    for (const [seconds, kind, text] of data.marks) {
      const at = x(Math.min(Math.max(seconds, data.start), data.start + wholeTime));
      const line = svgNode("line", { class: `mark ${kind}`, x1: at, x2: at, y1: top, y2: bottom });
      line.append(svgNode("title", {}, text));
      svg.append(line);
    }
  }

  function eventsIn(column) {
    const found = data.marks.filter(([seconds]) => Math.floor(partOf(seconds) * data.columns) === column);
    return found.length ? ` (${found.slice(0, 3).map(([, , text]) => text).join("; ")})` : "";
  }

  // A cursor that the pointer and the arrow keys move; `show` gets where it is and returns a text.
  function steer(plot, state, show) {
    const readout = plot.parentElement.querySelector(".readout");
    const tell = () => { readout.textContent = show(); };
    const move = (across, down) => {
      state.column = Math.min(Math.max((state.column ?? -1) + across, 0), state.columns() - 1);
      state.row = Math.min(Math.max((state.row ?? 0) + down, 0), state.rows() - 1);
      tell();
    };
    const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -16],
      PageDown: [0, 16], Home: [-1e6, 0], End: [1e6, 0] };
    plot.addEventListener("keydown", (event) => {
      const by = KEYS[event.key];
      if (!by || (by[1] && state.rows() === 1)) return;
      event.preventDefault();
      if (state.column === undefined && by[0] < 0) state.column = state.columns();
      if (state.column === undefined && by[1]) state.column = 0;
      move(...by);
    });
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      state.point(event.clientX - box.left, event.clientY - box.top);
      tell();
    });
  }

  // Lines over time: one for each rank, or for many ranks what most of them do.
  function lines(name, unit, show, valuesOf) {
    const plot = document.querySelector(`[data-plot="${name}"]`);
    if (!plot) return;
    const rows = data.rows;
    const known = rows.flatMap(valuesOf).filter((value) => value !== null);
    const most = known.reduce((a, b) => Math.max(a, b), -Infinity), least = known.reduce((a, b) => Math.min(a, b), Infinity);
    const room = 0.05 * (Math.max(most, 0) - Math.min(least, 0) || 1);
    const top = known.length ? Math.max(most, 0) + room : 1;
    const low = known.length && least < 0 ? least - room : 0;
    const isMany = rows.length > MOST_LINES;
    const spread = isMany ? columnsOf(rows.map(valuesOf)) : [];
    return columnChart(plot, data.columns, () => {
      const drawn = frame(plot, Math.min(260, Math.max(180, plot.clientWidth * 0.45)), low, top, unit);
      const { svg, x, y, height } = drawn;
      marks(svg, x, TOP, height - BOTTOM);
      if (isMany) bands(svg, spread, (c) => x(middle(c)), y);
      else rows.forEach((row, i) => series(svg, valuesOf(row), i, (c) => x(middle(c)), y));
      return [drawn, isMany ? bandLegend() : lineLegend(rows)];
    }, ({ x }, column) => x(middle(column)), (column) => {
      const values = rows.map((row) => [row.name, valuesOf(row)[column]]).filter(([, value]) => value !== null);
      const when = `At ${timeText(middle(column))}${eventsIn(column)}: `;
      if (!values.length) return `${when}nothing is known.`;
      if (!isMany) return when + values.map(([rank, value]) => `rank ${rank} ${show(value)}`).join(", ");
      const sorted = values.map(([, value]) => value).sort((a, b) => a - b);
      const [most, least] = [Math.max(...sorted), Math.min(...sorted)].map((v) => values.find(([, value]) => value === v));
      return `${when}median ${show(quantile(sorted, 0.5))}, least ${show(least[1])} (rank ${least[0]}), ` +
        `most ${show(most[1])} (rank ${most[0]})`;
    });
  }

  function columnsOf(rows) {
    return Array.from({ length: data.columns }, (_, column) => {
      const found = rows.map((row) => row[column]).filter((v) => v !== null).sort((a, b) => a - b);
      return found.length ? [0, 0.25, 0.5, 0.75, 1].map((part) => quantile(found, part)) : null;
    });
  }

  // Runs of columns with values, so that lines have gaps where nothing is known.
  function runs(values) {
    const found = [];
    values.forEach((value, column) => {
      if (value === null) return;
      const last = found[found.length - 1];
      if (last && last[last.length - 1] === column - 1) last.push(column);
      else found.push([column]);
    });
    return found;
  }

  function series(svg, values, index, x, y) {
    const stroke = `var(--s${index % 8})`;
    // Steps may be longer than a column: what is between two of them is joined.
    const there = values.map((value, column) => [value, column]).filter(([value]) => value !== null);
    const path = there.map(([value, c], i) => `${i ? "L" : "M"}${x(c).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    svg.append(svgNode("path", { class: "path", d: path, stroke, "stroke-dasharray": DASHES[index % 8] }));
    if (there.length === 1) svg.append(svgNode("circle", { class: "dot", cx: x(there[0][1]), cy: y(there[0][0]), r: 3, fill: stroke }));
  }

  function bands(svg, spread, x, y) {
    for (const run of runs(spread)) {
      for (const [low, high, className] of [[0, 4, "area"], [1, 3, "area inner"]]) {
        const up = run.map((c) => `${x(c).toFixed(1)} ${y(spread[c][high]).toFixed(1)}`);
        const back = run.map((c) => `${x(c).toFixed(1)} ${y(spread[c][low]).toFixed(1)}`).reverse();
        svg.append(svgNode("path", { class: className, d: `M${[...up, ...back].join("L")}Z` }));
      }
      const middle = run.map((c) => `${x(c).toFixed(1)} ${y(spread[c][2]).toFixed(1)}`).join("L");
      svg.append(svgNode("path", { class: "path", d: `M${middle}`, stroke: "var(--s0)" }));
    }
  }

  function legend(entries) {
    const list = node("ul", "legend");
    for (const [shape, text] of entries) {
      const item = node("li", "");
      const sample = svgNode("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" });
      sample.append(shape);
      item.append(sample, text);
      list.append(item);
    }
    return list;
  }
  const lineSample = (i) => svgNode("path", { class: "path", d: "M1 6H25", stroke: `var(--s${i % 8})`, "stroke-dasharray": DASHES[i % 8] });
  const lineLegend = (rows) => legend(rows.map((row, i) => [lineSample(i), `rank ${row.name}`]));
  const bandLegend = () => legend([
    [lineSample(0), "median of the ranks"],
    [svgNode("path", { class: "area inner", d: "M0 1H26V11H0Z" }), "middle half"],
    [svgNode("path", { class: "area", d: "M0 1H26V11H0Z" }), "all ranks"],
  ]);

  // Ranks by time.
  function heat() {
    const plot = document.querySelector('[data-plot="heat"]');
    if (!plot) return;
    const rows = data.rows;
    const radios = [...document.querySelectorAll('input[name="measure"]')];
    const key = () => radios.find((radio) => radio.checked).value;
    const cell = Math.max(2, Math.min(24, Math.floor(480 / rows.length)));
    const height = TOP - 8 + cell * rows.length + BOTTOM;
    const head = TOP - 8;
    let width, top, svg;
    const across = (column) => LEFT + (column / data.columns) * (width - LEFT - RIGHT);
    const state = { columns: () => data.columns, rows: () => rows.length, point: (x, y) => {
      const clamp = (value, most) => Math.min(Math.max(Math.floor(value), 0), most);
      state.column = clamp(((x - LEFT) / (width - LEFT - RIGHT)) * data.columns, data.columns - 1);
      state.row = clamp((y - head) / cell, rows.length - 1);
    } };
    const outline = svgNode("rect", { class: "chosen", visibility: "hidden" });
    const place = () => {
      if (state.column === undefined) return;
      const box = { x: across(state.column), y: head + state.row * cell, width: across(1) - across(0), height: cell, visibility: "visible" };
      for (const [name, value] of Object.entries(box)) outline.setAttribute(name, value);
    };
    const draw = () => {
      width = Math.max(plot.clientWidth, 240);
      const known = rows.flatMap((row) => row[key()]).filter((value) => value !== null);
      const most = known.reduce((a, b) => Math.max(a, b), 0);
      top = key() === "step" ? most || 1 : [10, 25, 50, 75, 100].find((each) => each >= most) || 100;
      const canvas = node("canvas", "");
      paint(canvas, rows.map((row) => row[key()]), { width, height, cell, head, across, top });
      svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true", style: "position:absolute;inset:0 auto auto 0" });
      const every = Math.ceil(rows.length / Math.max(1, Math.floor((cell * rows.length) / 18)));
      rows.forEach((row, i) => {
        if (i % every === 0) svg.append(svgNode("text", { x: LEFT - 6, y: head + i * cell + Math.max(cell / 2 + 4, 9), "text-anchor": "end" }, row.name.split(" ")[0]));
      });
      svg.append(svgNode("text", { x: 2, y: 9 }, "rank"));
      timeAxis(svg, (seconds) => LEFT + partOf(seconds) * (width - LEFT - RIGHT), height - 6, width);
      svg.append(outline);
      plot.replaceChildren(canvas, svg, ramp(UNITS[key()](top)));
      place();
    };
    steer(plot, state, () => {
      place();
      const value = rows[state.row][key()][state.column];
      const what = value === null ? "nothing is known" : UNITS[key()](value);
      const words = { waiting: "waiting", blocked: "blocked", step: "step time" }[key()];
      return `Rank ${rows[state.row].name} at ${timeText(middle(state.column))}` +
        `${eventsIn(state.column)}: ${words} ${what}`;
    });
    for (const radio of radios) radio.addEventListener("change", draw);
    return draw;
  }

  function paint(canvas, values, { width, height, cell, head, across, top }) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    const ramp = rampColours();
    const gap = cell >= 8 ? 1 : 0;
    values.forEach((row, i) => row.forEach((value, column) => {
      const left = Math.round(across(column) * scale), right = Math.round(across(column + 1) * scale);
      const upper = Math.round((head + i * cell) * scale), lower = Math.round((head + (i + 1) * cell - gap) * scale);
      if (value === null) {
        context.fillStyle = colour("--line");
        context.fillRect(left, Math.round((upper + lower) / 2), right - left, 1);
      } else {
        context.fillStyle = ramp[Math.min(ramp.length - 1, Math.floor((Math.max(value, 0) / top) * ramp.length))];
        context.fillRect(left, upper, right - left, lower - upper);
      }
    }));
  }

  // One hue from little to much, so that it can be read without telling colours apart.
  function rampColours() {
    const stops = [0, 1, 2, 3, 4].map((i) => colour(`--r${i}`)).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return Array.from({ length: 64 }, (_, i) => {
      const at = (i / 63) * 4, low = Math.min(3, Math.floor(at));
      const mixed = stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (at - low)));
      return `rgb(${mixed.join(",")})`;
    });
  }

  function ramp(most) {
    const made = node("div", "ramp");
    made.append("0", node("i", ""), `${most}; a thin line: nothing is known`);
    return made;
  }

  // What autotuning has tried.
  function trials() {
    const plot = document.querySelector('[data-plot="trials"]');
    if (!plot) return;
    const top = data.trials.reduce((most, [score]) => Math.max(most, score), 0) * 1.05 || 1;
    const centre = ({ width }, index) => LEFT + ((index + 0.5) / data.trials.length) * (width - LEFT - RIGHT);
    return columnChart(plot, data.trials.length, () => {
      const drawn = frame(plot, 200, 0, top, "bytes per second", scoreText, () => {});
      const { svg, y, width, height } = drawn;
      const every = Math.ceil(data.trials.length / Math.max(2, Math.floor(width / 60)));
      data.trials.forEach(([score, isChosen], i) => {
        const cx = centre(drawn, i);
        svg.append(svgNode("circle", { class: "dot", cx, cy: y(score), r: 4, fill: "var(--s0)" }));
        if (isChosen) svg.append(svgNode("circle", { class: "chosen", cx, cy: y(score), r: 8 }));
        if (i % every === 0) svg.append(svgNode("text", { x: cx, y: height - 6, "text-anchor": "middle" }, String(i + 1)));
      });
      return [drawn, legend([
        [svgNode("circle", { class: "dot", cx: 13, cy: 6, r: 4, fill: "var(--s0)" }), "a sample"],
        [svgNode("circle", { class: "chosen", cx: 13, cy: 6, r: 5 }), "chosen"],
      ])];
    }, centre, (column) => {
      const [score, isChosen] = data.trials[column];
      return `Sample ${column + 1}: ${scoreText(score)}${isChosen ? ", chosen" : ""}`;
    });
  }
  const scoreText = (score) => {
    for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (score >= factor) return `${three(score / factor)} ${unit}`;
    return three(score);
  };

  // On a narrow screen each row of a table is a list: see page.css.
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.head = heads[i]; });
  }

  const draws = [
    ...data.logged.map((name, i) => lines(`logged-${i}`, "", three, (row) => row.logged[i])),
    lines("samples", "", three, (row) => row.samples),
    lines("steps", "ms", UNITS.step, (row) => row.step), heat(),
    lines("bandwidth", "MB/s", UNITS.rate, (row) => row.rate), trials(),
  ].filter(Boolean);
  const drawAll = () => draws.forEach((draw) => draw());
  drawAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; drawAll(); }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
