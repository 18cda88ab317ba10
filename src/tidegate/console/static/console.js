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

// The property itself may hold both schemes' colours.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// "3 min 20 s": the two largest units.
function duration(seconds) {
  const parts = [];
  let rest = Math.round(seconds);
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    if (rest >= size && parts.length < 2) parts.push(`${Math.floor(rest / size)} ${name}`);
    rest %= size;
  }
  return parts.join(" ") || "0 s";
}

function formatted(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "seconds") return duration(value);
  if (unit !== "bytes/s") return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 }) + (unit ? ` ${unit}` : "");
  const units = ["B/s", "KB/s", "MB/s", "GB/s"];
  let index = 0;
  while (value >= 1023.5 && index < units.length - 1) [value, index] = [value / 1024, index + 1];
  return `${value.toLocaleString("en", { maximumFractionDigits: 1 })} ${units[index]}`;
}

// Four equal steps reach the highest value: so the lines of charts beside each other are at the same heights.
const STEPS = { seconds: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400] };
const TICKS = 4;

function stepOf(most, unit) {
  const isCount = unit === "events";
  const least = Math.max(most, isCount ? TICKS : 1) / TICKS;
  if (unit === "bytes/s") return 2 ** Math.ceil(Math.log2(least));
  const power = 10 ** Math.floor(Math.log10(least));
  const found = (STEPS[unit] ?? []).find((step) => step >= least);
  return found ?? [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= least && (!isCount || Number.isInteger(step)));
}

// A line needs two values beside each other: one alone is drawn as a point.
function alone(chart, number) {
  const values = chart.data[number];
  const isThere = (index) => values[index] !== null && values[index] !== undefined;
  return [...values.keys()].filter((index) => isThere(index) && !isThere(index - 1) && !isThere(index + 1));
}

function draw(place, shown) {
  const times = shown.times ?? shown.series[0].values.map((_, index) => shown.start + index * shown.step);
  const data = [times, ...shown.series.map((series) => series.values)];
  const key = place.id || place;
  const known = charts.get(key);
  if (known) {
    known.shown = shown;
    if (known.place !== place) place.append(known.chart.root);
    known.place = place;
    known.chart.setData(data);
    return;
  }
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const isDay = times.at(-1) - times[0] > 7200;
  const clock = (time) => stamp(new Date(time * 1000)).slice(11, isDay ? 16 : 19);
  // Without a pointer on the chart, the legend shows the newest value.
  const newest = (values) => values.findLast((value) => value !== null && value !== undefined);
  const plain = shown.unit === "bytes/s" || shown.unit === "seconds" ? shown.unit : "";
  const chart = new uPlot(
    {
      width: Math.max(place.clientWidth, 200),
      height: Number(place.dataset.height || 160),
      cursor: { y: false },
      tzDate: (time) => (isLocal() ? new Date(time * 1000) : uPlot.tzDate(new Date(time * 1000), "Etc/UTC")),
      scales: { y: { range: (_, low, high) => [0, TICKS * stepOf(high, shown.unit)] } },
      axes: [
        { ...axis, space: 80, size: 30, values: (_, ticks) => ticks.map(clock) },
        {
          ...axis,
          size: 76,
          splits: (chart) => Array.from({ length: TICKS + 1 }, (_, index) => (index * chart.scales.y.max) / TICKS),
          values: (_, ticks) => ticks.map((tick) => formatted(tick, plain)),
        },
      ],
      series: [
        { label: isLocal() ? "Local" : "UTC", value: (chart, time) => clock(time ?? newest(chart.data[0])) },
        ...shown.series.map((series, index) => ({
          label: series.label,
          stroke: colour(`--chart-${index + 1}`),
          width: 2,
          dash: index % 2 ? [6, 4] : [],
          points: { show: false, filter: alone },
          value: (chart, value, number, at) => formatted(at === null ? newest(chart.data[number]) : value, shown.unit),
        })),
      ],
    },
    data,
    place,
  );
  charts.set(key, { place, chart, shown });
}

function drawAll(root) {
  if (!root.querySelectorAll || typeof uPlot === "undefined") return;
  const found = [...root.querySelectorAll("[data-chart], [data-chart-for]")];
  if (root.matches?.("[data-chart], [data-chart-for]")) found.push(root);
  for (const element of found) {
    const place = element.dataset.chartFor ? document.getElementById(element.dataset.chartFor) : element;
    if (place) draw(place, JSON.parse(element.dataset.chart || element.getAttribute("value")));
  }
  for (const [key, { place, chart }] of charts) {
    if (!place.isConnected) {
      chart.destroy();
      charts.delete(key);
    }
  }
}

function isPaused() {
  return document.querySelector("[data-pause]")?.getAttribute("aria-pressed") === "true";
}

// <section data-day="URL"> has charts of the last 24 hours: its JSON has one for each data-day-chart.
async function drawDay(section) {
  const answer = await fetch(section.dataset.day).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const found = await answer.json();
  for (const place of section.querySelectorAll("[data-day-chart]")) draw(place, found[place.dataset.dayChart]);
}

function drawDays() {
  if (!document.hidden && !isPaused()) document.querySelectorAll("[data-day]").forEach(drawDay);
}

document.addEventListener("DOMContentLoaded", () => {
  drawAll(document);
  drawDays();
  setInterval(drawDays, 60_000);
});
document.addEventListener("htmx:load", (event) => drawAll(event.detail.elt));
window.addEventListener("resize", () => {
  for (const { place, chart } of charts.values()) {
    chart.setSize({ width: Math.max(place.clientWidth, 200), height: Number(place.dataset.height || 160) });
  }
});
function redraw() {
  const known = [...charts.values()];
  charts.clear();
  for (const { place, chart, shown } of known) {
    chart.destroy();
    draw(place, shown);
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("tidegate:display", redraw);

// Live parts are morphed: elements that stay keep focus, selection, scroll position, and whether they are open.
htmx.defineExtension("morph", {
  handleSwap: (style, target, fragment) => {
    if (style !== "morph") return false;
    prepare(fragment);
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
    const isStopped = !isPaused();
    pause.setAttribute("aria-pressed", String(isStopped));
    pause.textContent = isStopped ? "Go on" : "Pause";
  });
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (isPaused()) event.preventDefault();
  });
}

// Figures that stand still must not look live.
for (const [name, isLost] of [["htmx:sseError", true], ["htmx:sseOpen", false]]) {
  document.addEventListener(name, () => {
    const lost = document.querySelector("[data-live-lost]");
    if (lost) lost.hidden = !isLost;
  });
}
