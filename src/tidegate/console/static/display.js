// How pages are shown: times in the chosen zone, tables that become cards, copying, shortcuts, and events opened in place.
"use strict";

// --- times: <time datetime data-form="full|short">, in UTC as the service sends them, or in the browser's zone

function isLocal() {
  return document.documentElement.dataset.zone === "local";
}

function zoneOf(date) {
  if (!isLocal()) return "UTC";
  const minutes = -date.getTimezoneOffset();
  const [hours, rest] = [Math.trunc(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `${minutes < 0 ? "-" : "+"}${String(hours).padStart(2, "0")}:${String(rest).padStart(2, "0")}`;
}

// "2026-11-22 07:25:01", of the chosen zone.
function stamp(date) {
  const shifted = isLocal() ? new Date(date.getTime() - date.getTimezoneOffset() * 60_000) : date;
  return shifted.toISOString().slice(0, 19).replace("T", " ");
}

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    element.title = `${stamp(date)} ${zoneOf(date)}`;
    if (element.dataset.form === "full") element.textContent = element.title;
    if (element.dataset.form === "short") element.textContent = stamp(date).slice(5, 16);
  }
}

// --- tables: each cell knows its column, which a narrow page shows beside it

function labelCells(root) {
  for (const table of root.querySelectorAll("table:not(.u-legend)")) {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    // A table that is shown as cards stays a table for screen readers.
    table.setAttribute("role", "table");
    for (const part of table.children) part.setAttribute("role", part.tagName === "CAPTION" ? "caption" : "rowgroup");
    for (const row of table.querySelectorAll("tr")) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, index) => {
        const isHead = cell.tagName === "TH";
        cell.setAttribute("role", !isHead ? "cell" : cell.scope === "row" ? "rowheader" : "columnheader");
        if (cell.colSpan === 1 && row.parentElement.tagName === "TBODY") cell.dataset.label = names[index] ?? "";
      });
    }
  }
}

// Of a page, and of each part that comes later.
function prepare(root) {
  if (isLocal()) showTimes(root);
  labelCells(root);
}

// --- choices: <select data-choice="theme">

for (const select of document.querySelectorAll("[data-choice]")) {
  select.value = document.documentElement.dataset[select.dataset.choice];
  select.closest("[hidden]")?.removeAttribute("hidden");
  select.addEventListener("change", () => {
    choose(select.dataset.choice, select.value);
    showTimes(document);
    document.dispatchEvent(new Event("tidegate:display"));
  });
}

// --- an event of a list, opened below its row

async function openInPlace(link) {
  const row = link.closest("tr");
  if (row.nextElementSibling?.matches(".opened")) {
    row.nextElementSibling.remove();
    link.setAttribute("aria-expanded", "false");
    return;
  }
  if (link.ariaBusy === "true") return;
  link.ariaBusy = "true";
  const answer = await fetch(`${link.href}?in=place`).catch(() => null);
  link.ariaBusy = "false";
  if (!answer?.ok || answer.redirected) {
    location.href = link.href; // that page says what is wrong
    return;
  }
  const opened = document.createElement("tr");
  opened.className = "opened";
  const cell = opened.insertCell();
  cell.colSpan = row.cells.length;
  cell.innerHTML = await answer.text();
  row.after(opened);
  link.setAttribute("aria-expanded", "true");
  prepare(opened);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-in-place]");
  // Live rows move: their link leads to the event's page.
  if (!link || link.closest("[sse-swap]") || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openInPlace(link);
});

// --- copying: <button data-copy="ID" hidden>; browsers allow it on HTTPS and on this machine

for (const button of navigator.clipboard ? document.querySelectorAll("[data-copy]") : []) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2_000);
  });
}

// --- shortcuts; the page About lists them

const GO = { o: "/", h: "/hubs", c: "/consumers", d: "/dead-letters", p: "/pipelines", k: "/keys", a: "/audit" };
const PRESS = { "[": "a[rel=prev]", "]": "a[rel=next]", ".": "[data-pause]" };
const FOCUS = { "/": ".seek input", f: ".filters input:not([type=hidden]), .filters select" };
let isGoing = false;

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.documentElement.dataset.keys === "off") return;
  const wasGoing = isGoing;
  isGoing = event.key === "g";
  if (wasGoing && GO[event.key]) document.querySelector(`.bar nav a[href="${GO[event.key]}"]`)?.click();
  else if (PRESS[event.key]) document.querySelector(PRESS[event.key])?.click();
  else if (FOCUS[event.key]) document.querySelector(FOCUS[event.key])?.focus();
  else if (event.key === "?") location.href = "/console/about#shortcuts";
  else return;
  event.preventDefault();
});

prepare(document);
