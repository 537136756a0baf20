// Zooming down to instructions stays where one went. COFI names the command; else it is the release build.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const cofi = process.env.COFI ?? join(dirname(fileURLToPath(import.meta.url)), "../../../../target/release/cofi");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const SOURCE = "__attribute__((noinline)) int leaf(int x) { return x * 3; }\nint main(void) { int sum = 0; for (int i = 0; i < 30; i++) sum += leaf(i); return sum == 0; }\n";

test("keys zoom to the cursor, and bins are whole instructions", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "cofi-zoom-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [source, program, data] = ["zoom.c", "zoom", "zoom.data"].map((name) => join(folder, name));
  writeFileSync(source, SOURCE);
  execFileSync("gcc", ["-static", "-g", "-o", program, source]);
  execFileSync(cofi, ["record", "--engine", "ptrace", "-o", data, "--", program], { stdio: "pipe" });
  const server = spawn(cofi, ["serve", "--no-open", data], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => server.kill());
  const { value: address } = await createInterface({ input: server.stdout })[Symbol.asyncIterator]().next();
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  t.after(() => browser.close());
  const page = await browser.newPage();
  const strips = [];
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.pathname.endsWith("/api/strip")) strips.push(url.searchParams);
  });
  await page.goto(`${address}#axis=insns&row=0&at=100&tab=place`);
  await page.waitForSelector("html[data-ready]");
  for (let n = 0; n < 60; n++) await page.keyboard.press("+");
  await page.waitForFunction(() => {
    const words = new URLSearchParams(location.hash.slice(1));
    const [from, to] = ["from", "to"].map((name) => Number(words.get(name)));
    return to - from <= 9 && from <= 100 && 100 <= to;
  });
  // The picture of that view was asked for.
  const asked = () => ["from", "to", "bins"].map((name) => Number(strips.at(-1)?.get(name)));
  while (!(asked()[1] - asked()[0] <= 10)) await page.waitForTimeout(20);
  const [from, to, bins] = asked();
  assert.ok(from <= 100 && to >= 100, `${from} to ${to}`);
  assert.equal(bins, to - from);
});
