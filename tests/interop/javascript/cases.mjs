// What every program of a suite shares: cases with a time limit, each reported as one line of JSON.
// See tests/interop/suites/programs.py for the environment and the lines.
//
// The program's packages are those of the working directory: one program runs against several generations.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";

const CASE_MS_MAX = 90_000;

export const requireHere = createRequire(join(process.cwd(), "package.json"));
export const transport = process.env.TIDEGATE_TRANSPORT;
export const hub = process.env.TIDEGATE_HUB;
export const connectionString = process.env.TIDEGATE_CONNECTION_STRING;

/** The parts of the namespace's connection string. */
export const parts = Object.fromEntries(
  connectionString
    .split(";")
    .filter((part) => part)
    .map((part) => [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)]),
);
export const [host, port] = new URL(parts.Endpoint.replace("sb:", "https:")).host.split(":");

/** A token for `resource`, which stands in it as it is. */
export function sasToken(resource, { seconds = 3600, key = parts.SharedAccessKey } = {}) {
  const expiry = Math.floor(Date.now() / 1000) + seconds;
  const signed = `${encodeURIComponent(resource)}\n${expiry}`;
  const signature = encodeURIComponent(createHmac("sha256", key).update(signed).digest("base64"));
  return `SharedAccessSignature sr=${encodeURIComponent(resource)}&sig=${signature}&se=${expiry}&skn=${parts.SharedAccessKeyName}`;
}

/** Thrown by a case that cannot run here; the message says why. */
export class Skipped extends Error {}

const left = [];

/** Run `close` at the end of the case, the newest first; what it throws fails no case. */
export function later(close) {
  left.push(close);
}

/** The promise's value; throws once `ms` have passed. */
export async function within(ms, what, promise) {
  let timer;
  const late = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing came within ${ms / 1000} s.`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Things that come one by one, and those who wait until there are enough. */
export class Arrivals {
  all = [];
  #waiting = [];

  add(...things) {
    this.all.push(...things);
    this.#waiting = this.#waiting.filter((tryToEnd) => !tryToEnd());
  }

  /** All that came, once there are `count`. */
  atLeast(count, ms = 30_000) {
    const met = new Promise((resolve) => {
      const tryToEnd = () => this.all.length >= count && (resolve(this.all), true);
      if (!tryToEnd()) {
        this.#waiting.push(tryToEnd);
      }
    });
    return within(ms, `${count} arrivals`, met).catch((error) => {
      throw new Error(`${error.message} There were ${this.all.length}.`);
    });
  }
}

/** Run `cases`, name → function, one after another, and end the process. */
export async function runCases(cases) {
  const asked = (process.env.TIDEGATE_CASES ?? "").split("\n").filter((name) => name);
  for (const [name, run] of Object.entries(cases)) {
    if (asked.length > 0 && !asked.includes(name)) {
      continue;
    }
    const started = Date.now();
    let outcome = "passed";
    let detail = "";
    try {
      await within(CASE_MS_MAX, name, run());
    } catch (error) {
      outcome = error instanceof Skipped ? "skipped" : "failed";
      detail = outcome === "skipped" ? error.message : describe(error);
    }
    for (const close of left.splice(0).reverse()) {
      await within(10_000, "close", Promise.resolve().then(close)).catch(() => undefined);
    }
    process.stdout.write(`${JSON.stringify({ name, outcome, detail })}\n`);
    process.stderr.write(`${Date.now() - started} ms: ${name}\n`);
  }
  process.stdout.write("", () => process.exit(0));
}

function describe(error) {
  const inner = error?.errors?.at(-1) ?? error; // after retries an SDK throws the errors of all its tries
  const where = inner?.stack?.split("\n").findLast((line) => line.includes("tests/interop/javascript")) ?? "";
  const words = String(inner?.message ?? inner).replaceAll(/\s+/g, " ").slice(0, 400);
  return `${inner?.code ?? inner?.condition ?? inner?.name}: ${words} (${where.trim().split("/").at(-1)}`;
}

/** What `promise` throws; fails where it throws nothing within 30 s. */
export async function refusal(promise) {
  const error = await within(30_000, "a refusal", promise.then(() => null, (error) => error));
  assert.ok(error !== null, "it was accepted");
  assert.ok(!/nothing came within/.test(error.message), error.message);
  return error?.errors?.at(-1) ?? error;
}

export { assert };
