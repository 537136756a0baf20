// The page in a browser: Debian's chromium, on recordings made here. COFI names the command; else it is the release build. COFI_BOOT names the
// recording of a kernel's boot, as `cargo xtask exam machine --keep FOLDER` leaves it, with the kernel's names beside it.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
const cofi = process.env.COFI ?? join(here, "../../../../target/release/cofi");
const axe = readFileSync(join(here, "../node_modules/axe-core/axe.min.js"), "utf8");
const folder = mkdtempSync(join(tmpdir(), "cofi-page-"));
const servers = [];
let browser;

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});

after(async () => {
  await browser?.close();
  for (const server of servers) server.kill();
  rmSync(folder, { recursive: true, force: true });
});

const file = (name) => join(folder, name);
const PSB = Buffer.from("0282".repeat(8), "hex");

function record(name, source, { flags = ["-g", "-O1"], options = ["--engine", "ptrace"], strip = false } = {}) {
  writeFileSync(file(`${name}.c`), source);
  execFileSync("gcc", ["-static", "-pthread", ...flags, "-o", file(name), file(`${name}.c`)]);
  if (strip) execFileSync("strip", [file(name)]);
  execFileSync(cofi, ["record", ...options, "-o", file(`${name}.data`), "--", file(name)], { stdio: "pipe" });
  return file(`${name}.data`);
}

/** Serves recordings; the address. */
async function serve(...files) {
  const server = spawn(cofi, ["serve", "--no-open", ...files], { stdio: ["ignore", "pipe", "inherit"] });
  servers.push(server);
  for await (const line of createInterface({ input: server.stdout })) return line;
  throw new Error("no address");
}

/** A page that is ready, and what it complained of. */
async function open(address, { timeout = 60_000, ...options } = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  const complaints = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(address);
  await page.waitForSelector("html[data-ready]", { timeout });
  return { page, complaints };
}

/** No complaint, and nothing that axe finds. */
async function check({ page, complaints }) {
  await page.waitForFunction(() => !document.querySelector("[aria-busy]"));
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3)}`), []);
  assert.deepEqual(complaints, []);
}

const status = (page) => page.textContent("#status");
const told = async (page, wanted) => {
  await page.waitForFunction((text) => new RegExp(text).test(document.getElementById("status").textContent), wanted);
};
const at = async (page) => Number((await status(page)).match(/instruction ([\d,]+)/)?.[1].replaceAll(",", ""));

const CALLS = `
#include <stdio.h>
__attribute__((noinline)) int leaf(int x) { return x * 3; }
__attribute__((noinline)) int middle(int x) {
    int one = leaf(x);
    int two = leaf(x + 1);
    return one + two;
}
int main(void) {
    int sum = 0;
    for (int i = 0; i < 30; i++) sum += middle(i);
    printf("%d\\n", sum);
    return 0;
}
`;
let calls;

test("opens, zooms, searches, jumps, steps back, shows source", async () => {
  calls = record("calls", CALLS);
  const opened = await open(await serve(calls));
  const { page } = opened;
  assert.match(await page.textContent(".title"), /1 row, [\d,]+ instructions, 0 gaps/);
  await check(opened);

  const view = () => page.evaluate(() => Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  const width = async () => {
    await page.waitForTimeout(300);
    const { from, to } = await view();
    return to - from;
  };
  await page.click("#zoom-in");
  const one = await width();
  const box = await page.locator(".flame").boundingBox();
  await page.mouse.move(box.x + 600, box.y + 40);
  await page.mouse.wheel(0, -400);
  assert.ok((await width()) < one);
  await page.keyboard.press("Home");
  assert.ok((await width()) > one);

  await page.fill("#text", "leaf");
  await page.keyboard.press("Enter");
  const line = page.locator("#details tr", { hasText: /^leaf60 calls/ });
  await line.getByText("next").click();
  await told(page, "in leaf");
  const first = await at(page);
  await line.getByText("next").click();
  await page.waitForFunction((before) => !document.getElementById("status").textContent.includes(before), first.toLocaleString("en-US"));
  await told(page, "in leaf");
  const second = await at(page);
  assert.ok(second > first);
  await line.getByText("previous").click();
  await told(page, first.toLocaleString("en-US"));

  // Back to its call, and one more back.
  await page.click("[title^='Back to the call of this function']");
  await told(page, "in middle");
  assert.equal(await at(page), first - 1);
  await page.keyboard.press("I");
  await told(page, (first - 2).toLocaleString("en-US"));
  await page.keyboard.press("i");
  await told(page, (first - 1).toLocaleString("en-US"));
  await page.keyboard.press("n");
  await told(page, "calls.c:6");

  await page.click("#tab-place");
  await page.getByText("Open calls, innermost first").waitFor();
  assert.match(await page.textContent("#details"), /middle[\s\S]*main/);
  await page.click("#tab-code");
  await page.getByText("int two = leaf(x + 1);").waitFor();
  await check(opened);
  // A breakpoint on a line: its next and its previous execution.
  await page.click("[aria-label='Breakpoint at line 5']");
  await page.waitForSelector("[aria-label='Breakpoint at line 5'][aria-pressed=true]");
  await page.locator("#details").focus();
  const stood = await at(page);
  await page.keyboard.press("b");
  await told(page, "calls.c:5");
  const later = await at(page);
  assert.ok(later > stood);
  await page.keyboard.press("B");
  await page.waitForFunction((before) => !document.getElementById("status").textContent.includes(before), later.toLocaleString("en-US"));
  await told(page, "calls.c:5");
  assert.ok((await at(page)) < later);

  for (const [tab, text] of [["functions", /instructions, \d+ functions/], ["merged", /instructions in/], ["neighbours", /Who called middle/], ["insns", /Packets about there/], ["events", /system call|Events in/]]) {
    await page.click(`#tab-${tab}`);
    await page.locator("#details").getByText(text).first().waitFor();
    await check(opened);
  }

  // The link leads to the same view.
  await page.waitForTimeout(400);
  const again = await open(page.url());
  assert.equal(await at(again.page), await at(page));
  assert.equal(await again.page.getAttribute("#tab-events", "aria-selected"), "true");
  await check(again);

  for (const name of ["svg", "png"]) {
    const [download] = await Promise.all([page.waitForEvent("download"), page.click(`#${name}`)]);
    const bytes = readFileSync(await download.path());
    if (name === "svg") assert.match(bytes.toString(), /^<svg [\s\S]*>main<\/text>[\s\S]*<\/svg>\n$/);
    else assert.equal(bytes.subarray(1, 4).toString(), "PNG");
  }
  await page.click("#theme");
  await check(opened);
  await page.keyboard.press("?");
  await page.getByText("Double click on a call").waitFor();
  await check(opened);
});

test("dark, large and by keys alone", async () => {
  const opened = await open(await serve(calls), { colorScheme: "dark", viewport: { width: 640, height: 450 } });
  const { page } = opened;
  assert.equal(await page.getAttribute("html", "data-theme"), "dark");
  await check(opened);
  for (let n = 0; n < 60; n++) {
    if (await page.evaluate(() => document.activeElement?.classList.contains("flame"))) break;
    await page.keyboard.press("Tab");
  }
  assert.ok(await page.evaluate(() => document.activeElement.classList.contains("flame")), "the calls can be reached");
  await page.keyboard.press("i");
  await told(page, "instruction 0 ");
  await page.keyboard.press("c");
  await told(page, "instruction [1-9]");
  await page.keyboard.press("+");
  await check(opened);
});

test("a gap is shown and found", async () => {
  const path = record("gap", CALLS.replace("i < 30", "i < 30000"), { options: ["--engine", "ptrace", "--config", "psb_period=0"] });
  const bytes = readFileSync(path);
  // No packet begins with 5. Between PSBs the file holds nothing but the trace.
  const first = bytes.indexOf(PSB);
  const second = bytes.indexOf(PSB, first + PSB.length);
  assert.ok(first > 0 && second > first + 1000, `PSBs at ${first} and ${second}`);
  bytes.fill(5, second - 500, second - 460);
  writeFileSync(path, bytes);
  const opened = await open(await serve(path));
  assert.match(await opened.page.textContent(".title"), /[1-9]\d* gaps?$/);
  await opened.page.keyboard.press("i");
  await told(opened.page, "instruction 0 ");
  await opened.page.keyboard.press("g");
  await told(opened.page, "instruction [1-9]");
  await opened.page.click("#tab-events");
  await opened.page.locator("tr.bad").first().waitFor();
  await check(opened);
});

test("without symbols", async () => {
  const opened = await open(await serve(record("stripped", CALLS, { flags: ["-O1"], strip: true })));
  await opened.page.click("#tab-functions");
  await opened.page.locator("#details").getByText("stripped").first().waitFor();
  await opened.page.keyboard.press("i");
  await opened.page.click("#tab-insns");
  await opened.page.getByText("Packets about there").waitFor();
  await check(opened);
});

test("32 threads, with names that are markup", async () => {
  const source = `
    #define _GNU_SOURCE
    #include <pthread.h>
    static void *run(void *x) { pthread_setname_np(pthread_self(), "<b onx=1>&amp;"); volatile long n = 0; for (long i = 0; i < 200 + (long)x; i++) n += i; return 0; }
    int main(void) {
        pthread_t all[31];
        for (long i = 0; i < 31; i++) pthread_create(&all[i], 0, run, (void *)i);
        for (int i = 0; i < 31; i++) pthread_join(all[i], 0);
        return 0;
    }`;
  const opened = await open(await serve(record("threads", source)));
  const { page } = opened;
  assert.match(await page.textContent(".title"), /32 rows/);
  assert.equal(await page.locator("#row option").count(), 32);
  assert.match(await page.textContent("#row"), /<b onx=1>&amp; \d+/);
  await page.selectOption("#row", "20");
  await page.locator("#details").focus();
  await page.keyboard.press("i");
  await told(page, "<b onx=1>");
  // In the order of time, the next instruction may be another thread's.
  await page.keyboard.press("t");
  assert.ok(await page.locator("#steps-all").isChecked());
  const thread = async () => (await status(page)).match(/&amp; (\d+)|threads (\d+)/)?.[0];
  const threads = new Set();
  for (let count = 0; count < 400 && threads.size < 2; count++) {
    threads.add(await thread());
    const before = await status(page);
    await page.keyboard.press("c");
    await page.waitForFunction((text) => document.getElementById("status").textContent !== text, before);
  }
  assert.equal(threads.size, 2);
  await page.keyboard.press("t");
  await page.click("#tab-functions");
  await page.locator("#all").check();
  await page.locator("#details").getByText("all rows").first().waitFor();
  await check(opened);
});

const boot = process.env.COFI_BOOT;
test("a kernel's boot", { skip: boot ? false : "COFI_BOOT names no recording", timeout: 600_000 }, async () => {
  const opened = await open(await serve("--no-index-file", "--kallsyms", `${boot}.kallsyms`, boot), { timeout: 500_000 });
  const { page } = opened;
  assert.match(await page.textContent(".title"), /[12] rows?, [\d,]{11,} instructions, 0 gaps/);
  await page.fill("#text", "start_kernel");
  await page.keyboard.press("Enter");
  const line = page.locator("#details tr", { hasText: /^start_kernel\d+ calls/ });
  await line.getByText("next").click();
  await told(page, "in start_kernel");
  const start = await at(page);
  await page.locator("#details").focus();
  await page.keyboard.press("I");
  await told(page, (start - 1).toLocaleString("en-US"));
  await page.keyboard.press("i");
  await told(page, "in start_kernel");
  await page.keyboard.press("c");
  await page.waitForFunction(() => !document.getElementById("status").textContent.endsWith("in start_kernel"));
  assert.ok((await at(page)) > start);
  await page.keyboard.press("Home");
  await page.click("#tab-functions");
  await page.locator("#details").getByText("start_kernel").first().waitFor();
  for (let count = 0; count < 12; count++) await page.keyboard.press("+");
  await page.click("#tab-insns");
  await page.locator("#details tr.here").waitFor();
  await check(opened);
});

test("nothing ran", async () => {
  // A PSB, and nothing behind it.
  writeFileSync(file("nothing.pt"), Buffer.from("02820282028202820282028202820282" + "0223", "hex"));
  const opened = await open(await serve("--no-index-file", file("nothing.pt")));
  await opened.page.keyboard.press("i");
  await opened.page.keyboard.press("+");
  for (const tab of ["functions", "merged", "events", "insns", "code"]) {
    await opened.page.click(`#tab-${tab}`);
    await opened.page.waitForTimeout(150);
  }
  const errors = opened.complaints.filter((text) => !text.includes("404"));
  assert.deepEqual(errors, []);
});

test("two recordings where they part", async () => {
  const other = record("other", CALLS.replace("i < 30", "i < 31"));
  const opened = await open(await serve(calls, other));
  const { page } = opened;
  await page.locator("#details").getByText("another instruction came").first().waitFor();
  await page.locator("#details").getByText("show").first().click();
  await told(page, "instruction [1-9]");
  assert.equal(await page.locator(".pane").count(), 2);
  await check(opened);
});
