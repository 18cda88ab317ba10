// What the pages cannot do in HTML and htmx. Everything essential works without it.
"use strict";

// <button data-dialog="ID"> opens a <dialog>; <button data-close> in it closes it.
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    document.getElementById(opener.dataset.dialog)?.showModal();
    event.preventDefault();
  } else if (event.target.closest("[data-close]")) {
    event.target.closest("dialog")?.close();
  }
});

// <select data-submit> sends its form when it changes.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form?.requestSubmit();
});

// Charts are drawn by uPlot from JSON: {"times": [...], "series": [{"label": "in", "values": [...]}], "unit": "events/s"}.
// It is in <div id data-chart='JSON'> itself, or, where live updates must not touch the place, in
// <data data-chart-for="ID" value='JSON'>. A text beside it says the same.
const charts = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function formatted(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit !== "bytes/s") return value.toLocaleString("en", { maximumFractionDigits: 1 }) + (unit ? ` ${unit}` : "");
  const units = ["B/s", "KB/s", "MB/s", "GB/s"];
  let index = 0;
  while (value >= 1023.5 && index < units.length - 1) [value, index] = [value / 1024, index + 1];
  return `${value.toLocaleString("en", { maximumFractionDigits: 1 })} ${units[index]}`;
}

function clock(time) {
  return new Date(time * 1000).toISOString().slice(11, 19);
}

function draw(place, json) {
  const told = JSON.parse(json);
  const data = [told.times, ...told.series.map((series) => series.values)];
  const key = place.id || place;
  const known = charts.get(key);
  if (known) {
    known.json = json;
    if (known.place !== place) place.append(known.chart.root);
    known.place = place;
    known.chart.setData(data);
    return;
  }
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const chart = new uPlot(
    {
      width: Math.max(place.clientWidth, 200),
      height: Number(place.dataset.height || 160),
      cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [
        { ...axis, space: 80, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => formatted(tick, told.unit === "bytes/s" ? told.unit : "")) },
      ],
      series: [
        { label: "UTC", value: (_, time) => (time === null ? "–" : clock(time)) },
        ...told.series.map((series, index) => ({
          label: series.label,
          stroke: colour(`--chart-${index + 1}`),
          width: 2,
          dash: index % 2 ? [6, 4] : [],
          points: { show: false },
          value: (_, value) => formatted(value, told.unit),
        })),
      ],
    },
    data,
    place,
  );
  charts.set(key, { place, chart, json });
}

function drawAll(root) {
  if (!root.querySelectorAll || typeof uPlot === "undefined") return;
  const found = [...root.querySelectorAll("[data-chart], [data-chart-for]")];
  if (root.matches?.("[data-chart], [data-chart-for]")) found.push(root);
  for (const element of found) {
    const place = element.dataset.chartFor ? document.getElementById(element.dataset.chartFor) : element;
    if (place) draw(place, element.dataset.chart || element.getAttribute("value"));
  }
  for (const [key, { place, chart }] of charts) {
    if (!place.isConnected) {
      chart.destroy();
      charts.delete(key);
    }
  }
}

document.addEventListener("DOMContentLoaded", () => drawAll(document));
document.addEventListener("htmx:load", (event) => drawAll(event.detail.elt));
window.addEventListener("resize", () => {
  for (const { place, chart } of charts.values()) {
    chart.setSize({ width: Math.max(place.clientWidth, 200), height: Number(place.dataset.height || 160) });
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  const known = [...charts.values()];
  charts.clear();
  for (const { place, chart, json } of known) {
    chart.destroy();
    draw(place, json);
  }
});

// Live parts are morphed: elements that stay keep focus, selection, scroll position, and whether they are open.
htmx.defineExtension("morph", {
  handleSwap: (style, target, fragment) => {
    if (style !== "morph") return false;
    // A row is still the same row if it has the same link or title, wherever it is now.
    for (const row of [...target.querySelectorAll("tbody tr"), ...fragment.querySelectorAll("tbody tr")]) {
      const title = row.querySelector("th[scope=row]");
      if (title && !row.id) row.id = `row ${title.querySelector("a")?.getAttribute("href") ?? title.textContent}`;
    }
    return Idiomorph.morph(target, [...fragment.childNodes], {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      callbacks: {
        // Opened or closed by the user. What uPlot has drawn is not in what the service sends.
        beforeAttributeUpdated: (name, element) => !(name === "open" && element.matches("details, dialog")),
        beforeNodeRemoved: (node) => !(node instanceof Element && node.matches(".uplot")),
      },
    });
  },
});

// Live pages can be held still, to read them.
const pause = document.querySelector("[data-pause]");
if (pause && document.querySelector("[sse-connect]")) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    const isPaused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (pause.getAttribute("aria-pressed") === "true") event.preventDefault();
  });
}

// Figures that stand still must not look live.
for (const [name, isLost] of [["htmx:sseError", true], ["htmx:sseOpen", false]]) {
  document.addEventListener(name, () => {
    const lost = document.querySelector("[data-live-lost]");
    if (lost) lost.hidden = !isLost;
  });
}
