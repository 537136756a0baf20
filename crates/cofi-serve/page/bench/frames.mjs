// How evenly the page is drawn while its calls are dragged to and fro for five seconds: `npm run frames -- ADDRESS [ZOOM]`, with the address that
// `cofi serve --no-open` prints and how often to zoom in first. What a frame takes is what Chromium's own tracing tells.
import { chromium } from "playwright-core";

const SECONDS = 5;
const [address, zoom = "6"] = process.argv.slice(2);
if (!address) throw new Error("which address?");
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
const opened = performance.now();
await page.goto(address);
await page.waitForSelector("html[data-ready]", { timeout: 600_000 });
console.log(`ready after ${Math.round(performance.now() - opened)} ms`);
for (let count = 0; count < Number(zoom); count++) await page.keyboard.press("+");
await page.waitForTimeout(1500);

await browser.startTracing(page, { categories: ["devtools.timeline"] });
const box = await page.locator(".flame").boundingBox();
await page.evaluate(() => {
  window.frames = [];
  const next = (time) => {
    window.frames.push(time);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
});
let x = 900;
let by = -6;
await page.mouse.move(box.x + x, box.y + 100);
await page.mouse.down();
const begin = performance.now();
while (performance.now() - begin < SECONDS * 1000) {
  x += by;
  if (x < 250 || x > 1200) by = -by;
  await page.mouse.move(box.x + x, box.y + 100);
  await new Promise((resolve) => setTimeout(resolve, 8));
}
await page.mouse.up();
const frames = await page.evaluate(() => window.frames);
const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
await browser.close();

const told = (name, values) => {
  values.sort((a, b) => a - b);
  const at = (part) => values[Math.min(values.length - 1, Math.floor(values.length * part))]?.toFixed(1);
  console.log(`${name}: median ${at(0.5)} ms, 95 of 100 within ${at(0.95)} ms, at most ${at(1)} ms`);
};
console.log(`${(((frames.length - 1) * 1000) / (frames.at(-1) - frames[0])).toFixed(1)} frames a second`);
told("from frame to frame", frames.slice(1).map((time, index) => time - frames[index]));
const drawn = traceEvents.filter(({ name, dur }) => name === "FireAnimationFrame" && dur > 0);
told("script of a frame", drawn.map(({ dur }) => dur / 1000));
