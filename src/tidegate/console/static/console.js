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

// <div data-chart='{"times": [...], "series": [{"label": "in", "values": [...]}], "unit": "events/s"}'> is drawn by
// uPlot. What a live update puts in its place is drawn again. The table or text beside it says the same.
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

function draw(place) {
  const told = JSON.parse(place.dataset.chart);
  const data = [told.times, ...told.series.map((series) => series.values)];
  const key = place.id || place;
  const known = charts.get(key);
  if (known && known.place === place) {
    known.chart.setData(data);
    return;
  }
  known?.chart.destroy();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const chart = new uPlot(
    {
      width: Math.max(place.clientWidth, 200),
      height: Number(place.dataset.height || 160),
      cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [axis, { ...axis, size: 76, values: (_, ticks) => ticks.map((tick) => formatted(tick, told.unit)) }],
      series: [
        {},
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
  charts.set(key, { place, chart });
}

function drawAll(root) {
  if (!root.querySelectorAll || typeof uPlot === "undefined") return;
  for (const [key, { place, chart }] of charts) {
    if (!place.isConnected) {
      chart.destroy();
      charts.delete(key);
    }
  }
  if (root.matches?.("[data-chart]")) draw(root);
  root.querySelectorAll("[data-chart]").forEach(draw);
}

document.addEventListener("DOMContentLoaded", () => drawAll(document));
document.addEventListener("htmx:load", (event) => drawAll(event.detail.elt));
window.addEventListener("resize", () => {
  for (const { place, chart } of charts.values()) {
    chart.setSize({ width: Math.max(place.clientWidth, 200), height: Number(place.dataset.height || 160) });
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { place, chart } of charts.values()) {
    chart.destroy();
    place.replaceChildren();
  }
  charts.clear();
  drawAll(document);
});
