
"use strict";
// Adds to a page that is whole without it: facts under the pointer, legends that switch, themes, CSV.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const number = (v) => {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4;
    const text = size > 0 && size < 0.001 ? v.toExponential(2) : v.toLocaleString("en", { maximumFractionDigits: digits });
    return text.replace("-", "−");
  };

  const duration = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

  // Text only ever enters the page as text.
  const make = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  const colour = (line) => (line.k === "reference" ? "" : `c${line.c % 8}`);

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.facts = data.charts[figure.dataset.chart];
      this.plot = figure.querySelector(".plot");
      this.groups = [...figure.querySelectorAll("svg [data-name]")];
      this.off = new Set();
      this.index = 0;
      if (!this.facts) return;
      this.plot.addEventListener("pointermove", (e) => this.point(e.clientX, e.clientY));
      this.plot.addEventListener("pointerleave", () => this.clear());
      this.plot.addEventListener("blur", () => this.clear());
      this.plot.addEventListener("keydown", (e) => this.key(e));
      figure.querySelectorAll(".key").forEach((button) => button.addEventListener("click", () => this.toggle(button)));
    }

    toggle(button) {
      const name = button.dataset.name;
      if (!this.off.delete(name)) this.off.add(name);
      button.setAttribute("aria-pressed", String(!this.off.has(name)));
      this.groups.forEach((g) => g.classList.toggle("off", this.off.has(g.dataset.name)));
      this.clear();
    }

    key(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.index = Math.min(100, Math.max(0, this.index + step));
      const box = this.plot.getBoundingClientRect();
      this.point(box.left + (box.width * this.index) / 100, box.top + box.height / 2);
    }

    // Where each visible line is at the pointer; the line nearest to it comes first.
    found(x, share) {
      const { x: [x0, x1], y: [y0, y1], lines } = this.facts;
      return lines.map((line, number) => ({ line, number })).filter(({ line }) => !this.off.has(line.n)).map(({ line, number }) => {
        const i = nearest(line.x, x);
        const right = (line.x[i] - x0) / (x1 - x0), down = 1 - (line.y[i] - y0) / (y1 - y0);
        return { line, number, i, right, down, off: Math.abs(line.x[i] - x) / (x1 - x0), far: Math.abs(down - share) };
      }).filter((f) => f.off < 0.06).sort((a, b) => a.far - b.far);
    }

    point(clientX, clientY) {
      const box = this.plot.getBoundingClientRect();
      const across = (clientX - box.left) / box.width;
      const [x0, x1] = this.facts.x;
      const found = this.found(x0 + across * (x1 - x0), (clientY - box.top) / box.height);
      this.clear();
      if (!found.length) return;
      const near = found[0];
      this.figure.querySelector(`g.line[data-line="${near.number}"]`)?.classList.add("near");
      const cross = make("div", "cross");
      cross.style.left = `${100 * near.right}%`;
      this.plot.append(cross, ...this.spots(found, near));
      this.tell(found, near, box);
    }

    spots(found, near) {
      return found.filter((f) => f === near || f.line.k === "mean").map((f) => {
        const spot = make("div", `spot ${colour(f.line)}`);
        spot.style.left = `${100 * f.right}%`;
        spot.style.top = `${100 * f.down}%`;
        return spot;
      });
    }

    tell(found, near, box) {
      const card = make("div", "facts");
      const step = near.line.x[near.i];
      const skip = this.facts.skip || 1;
      const place = this.facts.profile ? `τ = ${number(step)}` : `step ${number(step)} · ${number(step * skip)} frames`;
      card.append(make("div", "at", place));
      card.append(this.row(near), ...this.more(near));
      const others = found.filter((f) => f !== near && (f.line.k === "mean" || f.line.k === "reference"));
      others.slice(0, 8).forEach((f) => card.append(this.row(f)));
      this.plot.append(card);
      // Beside the pointer where there is more room, at the end of the plot where the point is not.
      const left = near.right * box.width;
      card.style.left = `${left > box.width / 2 ? Math.max(-44, left - card.offsetWidth - 16) : left + 16}px`;
      card.style[near.down > 0.5 ? "top" : "bottom"] = "-6px";
    }

    row({ line, i }) {
      const row = make("div", "fact");
      const seed = line.k === "reference" ? "" : line.t && !this.facts.profile ? ` · ${line.t}` : "";
      row.append(make("i", colour(line)), make("span", "", `${line.n}${seed}`), make("b", "", number(line.y[i])));
      return row;
    }

    more({ line, i }) {
      const texts = [];
      if (line.sd) texts.push(`± ${number(line.sd[i])}`);
      if (line.lo && this.facts.profile) texts.push(`${number(line.lo[i])} to ${number(line.hi[i])}: 95 % interval of the share`);
      else if (line.lo) texts.push(`min ${number(line.lo[i])} · max ${number(line.hi[i])}`);
      if (line.e) texts.push(`${number(line.e[i])} episodes`);
      if (line.s) texts.push(`after ${duration(line.s[i])}`);
      if (line.k === "reference" && line.t) texts.push(line.t);
      return texts.length ? [make("div", "more", texts.join(" · "))] : [];
    }

    clear() {
      this.plot.querySelectorAll(".cross, .spot, .facts").forEach((e) => e.remove());
      this.groups.forEach((g) => g.classList.remove("near"));
    }
  }

  document.querySelectorAll("[data-chart]").forEach((figure) => new Chart(figure));

  const choice = document.querySelector(".switch");
  if (choice) {
    const section = document.getElementById("learning");
    const show = (view) => {
      section.dataset.shown = view;
      choice.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.view === view)));
    };
    choice.hidden = false;
    choice.querySelectorAll("button").forEach((b) => b.addEventListener("click", () => show(b.dataset.view)));
    show("training");
  }

  // A cell that a spreadsheet would take for a formula is disarmed by an apostrophe.
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const tables = {
    scores: () => [["run", "env", "algo", "seed", "mean", "std", "episodes", "step", "source", "protocol", "protocol_hash", "state"], ...data.scores],
    curves: () => {
      const rows = [["run", "env", "algorithm", "seed", "step", "frames", "seconds", "mean", "std", "min", "max", "episodes"]];
      Object.values(data.charts).forEach((chart) => chart.lines.filter((line) => line.r).forEach((line) => line.x.forEach((x, i) => rows.push(
        [line.r, chart.name, line.n, line.t.replace("seed ", ""), x, x * (chart.skip || 1), line.s?.[i], line.y[i], line.sd?.[i], line.lo?.[i], line.hi?.[i], line.e?.[i]]))));
      return rows;
    },
  };
  const csv = (name) => tables[name]().map((row) => row.map(cell).join(",")).join("\n") + "\n";
  document.querySelectorAll("[data-csv]").forEach((button) => button.addEventListener("click", () => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([csv(button.dataset.csv)], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));

  const root = document.documentElement;
  const remembered = () => { try { return localStorage.getItem("ludus-theme"); } catch { return null; } };
  if (remembered()) root.dataset.theme = remembered();
  document.querySelector("[data-theme-toggle]").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("ludus-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
  });

  // What is folded would not be printed.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((d) => { d.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((d) => { d.open = false; }));

  window.ludusReport = { csv };
})();
