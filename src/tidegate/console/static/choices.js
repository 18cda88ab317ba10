// What this browser remembers of its user's choices. Runs before the page is drawn, which would change its colours.
"use strict";

const CHOICES = { theme: ["system", "light", "dark"], zone: ["utc", "local"], keys: ["on", "off"] };

function choose(name, value) {
  document.documentElement.dataset[name] = value;
  try {
    localStorage.setItem(`tidegate-${name}`, value);
  } catch {
    // The browser keeps nothing: the choice is of this page.
  }
}

for (const [name, values] of Object.entries(CHOICES)) {
  let kept = null;
  try {
    kept = localStorage.getItem(`tidegate-${name}`);
  } catch {
    // As above.
  }
  document.documentElement.dataset[name] = values.includes(kept) ? kept : values[0];
}
