// The page: its panes, its panels, keys, links.

import { type Axis, type FunctionRow, type Params, type Recording, ask, isAbort } from "./api.js";
import { byId, count, el } from "./dom.js";
import { colours, svg } from "./paint.js";
import { type Host, Pane } from "./pane.js";
import { type Desk, PANELS } from "./panels.js";

const axisSelect = byId<HTMLSelectElement>("axis");
const rowSelect = byId<HTMLSelectElement>("row");
const status = byId("status");
const details = byId("details");
const tabs = byId("tabs");

const panes: Pane[] = [];
let active: Pane;
let tab = "place";
let allRows = false;
/** Steps go through all rows in the order of time. */
let stepsAll = false;
let shown = new AbortController();
let isRestoring = true;

const tell = (text: string): void => {
  status.textContent = text.replace(/^Error: /, "");
};

const host: Host = {
  axis: () => axisSelect.value as Axis,
  activate(pane) {
    if (active === pane) return;
    active?.root.classList.remove("active");
    active = pane;
    desk.pane = pane;
    pane.root.classList.add("active");
    fillRows();
    redrawSoon();
  },
  changed(pane, isJump) {
    if (pane !== active) host.activate(pane);
    rowSelect.value = String(pane.row);
    remember(isJump);
    const panel = PANELS[tab];
    if (panel?.usesPart || panel?.usesPlace) redrawSoon();
    announce(pane);
  },
  chooseFunction: (pane, fn) => desk.chooseFunction(pane, fn),
  tell,
};

const desk: Desk = {
  pane: undefined as unknown as Pane,
  panes,
  fn: null,
  text: "",
  breakpoints: new Map(),
  part() {
    const { from, to } = desk.pane.selection ?? desk.pane.view;
    const rows = allRows ? "all" : String(desk.pane.row);
    return { axis: host.axis(), from: Math.max(0, Math.floor(from)), to: Math.max(0, Math.ceil(to)), rows };
  },
  goTo(pane, row, at) {
    pane.goTo(row, at).catch((error) => tell(String(error)));
  },
  chooseFunction(pane, fn, to) {
    desk.pane = pane;
    desk.fn = fn;
    remember(false);
    if (to && to !== tab) openTab(to);
    else redrawSoon();
  },
  find(params, forward) {
    void find(params, forward);
  },
  redraw: () => void redraw(),
  tell,
};

function announce(pane: Pane): void {
  const { place } = pane;
  if (!place) return;
  tell(`${pane.rowName(place.row)}, instruction ${count(place.at)} of ${count(place.of)}, in ${pane.name(place.function)}${place.source ? `, ${place.source[0].split("/").pop()}:${place.source[1] ?? "?"}` : ""}`);
}

let lastTarget: Params | null = null;

async function find(params: Params, forward: boolean): Promise<void> {
  const pane = desk.pane;
  lastTarget = params;
  tell("Looking…");
  try {
    const at = pane.place?.row === pane.row ? pane.place.at : 0;
    const rows = allRows ? "all" : undefined;
    const found = await pane.ask<{ row: number; at: number | null }>("find", { ...params, row: pane.row, at, rows, dir: forward ? "next" : "previous" });
    if (found.at === null) tell(`It does not run ${forward ? "behind" : "before"} that.`);
    else await pane.goTo(found.row, found.at);
  } catch (error) {
    tell(String(error));
  }
}

/** The nearest place where a line with a breakpoint runs. */
async function toBreakpoint(forward: boolean): Promise<void> {
  const pane = desk.pane;
  if (!desk.breakpoints.size) return tell("No line has a breakpoint: set one in the tab Code.");
  tell("Looking…");
  const at = pane.place?.row === pane.row ? pane.place.at : 0;
  let best: { row: number; at: number } | null = null;
  for (const { file, line } of desk.breakpoints.values()) {
    const found = await pane.ask<{ row: number; at: number | null }>("find", { what: "line", value: file, line, row: pane.row, at, dir: forward ? "next" : "previous" });
    if (found.at === null) continue;
    if (!best || (forward ? found.at < best.at : found.at > best.at)) best = { row: found.row, at: found.at };
  }
  if (best) await pane.goTo(best.row, best.at);
  else tell(`No breakpoint is met ${forward ? "behind" : "before"} that.`);
}

let isStepping = false;

async function step(by: string, forward: boolean): Promise<void> {
  const pane = desk.pane;
  if (isStepping || pane.recording.state !== "ready") return;
  isStepping = true;
  try {
    const at = pane.place?.row === pane.row ? pane.place.at : null;
    if (at === null) return await pane.goTo(pane.row, 0);
    const rows = stepsAll ? { rows: "all" } : {};
    const found = await pane.ask<{ row: number; at: number | null }>("step", { row: pane.row, at, by, dir: forward ? "next" : "previous", ...rows });
    const what = stepsAll ? "recording" : "row";
    if (found.at === null) tell(`The ${what} ${forward ? "ends" : "begins"} there.`);
    else await pane.goTo(found.row, found.at, false);
  } catch (error) {
    tell(String(error));
  } finally {
    isStepping = false;
  }
}

function fillRows(): void {
  const pane = active;
  const names = pane.rows.map((_, index) => pane.rowName(index));
  if (rowSelect.options.length !== names.length || rowSelect.dataset.pane !== String(pane.number)) {
    rowSelect.replaceChildren(...names.slice(0, 5000).map((name, index) => el("option", { value: index }, name)));
    rowSelect.dataset.pane = String(pane.number);
  }
  rowSelect.value = String(pane.row);
}

function openTab(name: string): void {
  tab = name;
  for (const button of tabs.querySelectorAll<HTMLElement>("[role=tab]")) {
    const isIt = button.dataset.tab === name;
    button.setAttribute("aria-selected", String(isIt));
    button.tabIndex = isIt ? 0 : -1;
  }
  details.scrollTop = 0;
  details.setAttribute("aria-labelledby", `tab-${name}`);
  remember(false);
  void redraw();
}

let redrawTimer = 0;
function redrawSoon(): void {
  clearTimeout(redrawTimer);
  redrawTimer = window.setTimeout(() => void redraw(), 120);
}

async function redraw(): Promise<void> {
  shown.abort();
  const asked = (shown = new AbortController());
  const panel = PANELS[tab];
  if (!panel || !desk.pane) return;
  if (desk.pane.recording.state !== "ready") {
    details.replaceChildren(el("p", { class: "note" }, desk.pane.recording.state === "failed" ? "There is no index." : "The index is being built."));
    return;
  }
  details.setAttribute("aria-busy", "true");
  byId("scope").hidden = !panel.usesPart || desk.pane.rows.length < 2;
  const slow = setTimeout(() => {
    if (!asked.signal.aborted) details.replaceChildren(el("p", { class: "note" }, "Decoding…"));
  }, 400);
  try {
    await panel.show(desk, details, asked.signal);
  } catch (error) {
    if (!isAbort(error) && !asked.signal.aborted) details.replaceChildren(el("p", { class: "bad" }, String(error).replace(/^Error: /, "")));
  } finally {
    clearTimeout(slow);
    if (!asked.signal.aborted) details.removeAttribute("aria-busy");
  }
}

// A link for each view.

function state(): string {
  const pane = desk.pane;
  const words = new URLSearchParams();
  words.set("axis", host.axis());
  if (pane.number) words.set("r", String(pane.number));
  words.set("from", String(Math.round(pane.view.from)));
  words.set("to", String(Math.round(pane.view.to)));
  words.set("row", String(pane.row));
  if (pane.place) words.set("at", String(pane.place.at));
  if (desk.fn !== null) words.set("fn", String(desk.fn));
  if (desk.text) words.set("text", desk.text);
  if (allRows) words.set("all", "1");
  if (stepsAll) words.set("steps", "all");
  words.set("tab", tab);
  return `#${words}`;
}

let rememberTimer = 0;
function remember(isJump: boolean): void {
  if (isRestoring || !desk.pane) return;
  clearTimeout(rememberTimer);
  if (isJump) return history.pushState(null, "", state());
  rememberTimer = window.setTimeout(() => history.replaceState(null, "", state()), 200);
}

async function restore(): Promise<void> {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name: string): number | null => {
    const value = words.get(name);
    return value !== null && /^-?\d+$/.test(value) ? Number(value) : null;
  };
  const pane = panes[number("r") ?? 0] ?? panes[0];
  if (!pane) return;
  isRestoring = true;
  try {
    host.activate(pane);
    const axis = words.get("axis");
    if (axis && [...axisSelect.options].some((option) => option.value === axis)) axisSelect.value = axis;
    for (const each of panes) {
      each.reset();
      each.view = each.whole();
    }
    const [from, to] = [number("from"), number("to")];
    if (from !== null && to !== null && to > from) pane.show({ from, to });
    pane.row = Math.max(0, Math.min(number("row") ?? 0, pane.rows.length - 1));
    desk.fn = number("fn");
    if (desk.fn !== null && !pane.functions[desk.fn]) desk.fn = null;
    desk.text = words.get("text") ?? "";
    byId<HTMLInputElement>("text").value = desk.text;
    setAll(words.get("all") === "1");
    setStepsAll(words.get("steps") === "all");
    const wanted = words.get("tab");
    openTab(wanted && PANELS[wanted] && (wanted !== "parting" || panes.length > 1) ? wanted : panes.length > 1 ? "parting" : "place");
    const at = number("at");
    if (at !== null && at < (pane.rows[pane.row]?.insns ?? 0)) await pane.goTo(pane.row, at, false);
    for (const each of panes) each.refresh();
  } catch (error) {
    tell(String(error));
  } finally {
    isRestoring = false;
    fillRows();
  }
}

function setAll(value: boolean): void {
  allRows = value;
  const box = document.getElementById("all") as HTMLInputElement | null;
  if (box) box.checked = value;
}

function setStepsAll(value: boolean): void {
  stepsAll = value;
  byId<HTMLInputElement>("steps-all").checked = value;
}

// Pictures.

function save(blob: Blob, name: string): void {
  const anchor = el("a", { href: URL.createObjectURL(blob), download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}

function saveSvg(): void {
  const painters = [];
  let height = 0;
  for (const pane of panes) {
    const part = pane.toSvg(height);
    painters.push(...part.painters);
    height += part.height;
  }
  const width = painters[0]?.width ?? 1;
  save(new Blob([svg(painters, width, height, colours().back)], { type: "image/svg+xml" }), "cofi.svg");
}

function savePng(): void {
  const parts = panes.flatMap((pane) => pane.canvases());
  const whole = document.createElement("canvas");
  whole.width = Math.max(...parts.map((part) => part.width));
  whole.height = parts.reduce((sum, part) => sum + part.height, 0);
  const context = whole.getContext("2d");
  let y = 0;
  for (const part of parts) {
    context?.drawImage(part, 0, y);
    y += part.height;
  }
  whole.toBlob((blob) => blob && save(blob, "cofi.png"), "image/png");
}

// Keys and buttons.

type Act = () => void;
const STEPS: [string, string, string, Act][] = [
  ["◀i", "I", "One instruction back", () => void step("insn", false)],
  ["i▶", "i", "One instruction on", () => void step("insn", true)],
  ["◀line", "N", "Back to the line before, over calls", () => void step("over", false)],
  ["line▶", "n", "On to the next line, over calls", () => void step("over", true)],
  ["◀into", "L", "Back to the line before, into calls", () => void step("line", false)],
  ["into▶", "l", "On to the next line, into calls", () => void step("line", true)],
  ["◀call", "C", "Back to where a call began", () => void step("call", false)],
  ["call▶", "c", "On to where the next call begins", () => void step("call", true)],
  ["◀out", "O", "Back to the call of this function", () => void step("out", false)],
  ["out▶", "o", "On to where this function has returned", () => void step("out", true)],
];

const KEYS: [string, string, Act][] = [
  ["+", "zoom in", () => desk.pane.zoom(0.6)],
  ["-", "zoom out", () => desk.pane.zoom(1 / 0.6)],
  ["w", "zoom in", () => desk.pane.zoom(0.6)],
  ["s", "zoom out", () => desk.pane.zoom(1 / 0.6)],
  ["a", "to the left", () => desk.pane.pan(-0.2)],
  ["d", "to the right", () => desk.pane.pan(0.2)],
  ["ArrowLeft", "to the left", () => desk.pane.pan(-0.2)],
  ["ArrowRight", "to the right", () => desk.pane.pan(0.2)],
  ["PageUp", "the thread above", () => desk.pane.choose(desk.pane.row - 1)],
  ["PageDown", "the thread below", () => desk.pane.choose(desk.pane.row + 1)],
  ["Home", "the whole run", () => desk.pane.show(desk.pane.whole(), true)],
  ["z", "zoom to the selection", () => desk.pane.selection && desk.pane.show(desk.pane.selection, true)],
  ["Escape", "no selection", () => { desk.pane.selection = null; desk.pane.refresh(); host.changed(desk.pane, false); }],
  ...STEPS.map(([, key, text, act]): [string, string, Act] => [key, text, act]),
  ["t", "steps go through all rows in the order of time, or stay in theirs", () => { setStepsAll(!stepsAll); remember(false); }],
  ["f", "where what was looked for last runs next", () => lastTarget && void find(lastTarget, true)],
  ["F", "where it ran before", () => lastTarget && void find(lastTarget, false)],
  ["b", "on to the next breakpoint", () => void toBreakpoint(true)],
  ["B", "back to the breakpoint before", () => void toBreakpoint(false)],
  ["g", "the next gap", () => void find({ what: "gap" }, true)],
  ["G", "the gap before", () => void find({ what: "gap" }, false)],
  ["/", "search", () => byId("text").focus()],
  ["?", "these keys", () => showHelp()],
];

function showHelp(): void {
  const dialog = byId<HTMLDialogElement>("help");
  const lines = KEYS.map(([key, text]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text)));
  dialog.replaceChildren(
    el("h2", { id: "help-title" }, "Keys"),
    el("table", {}, el("tbody", {}, ...lines)),
    el("p", { class: "note" }, "Wheel: zoom; with Shift: move. Drag on the rows: select. Drag on the calls: move. Click: go there. Double click on a call: zoom to it."),
    el("button", { type: "button", click: () => dialog.close() }, "Close"),
  );
  dialog.showModal();
}

function theme(next?: string): void {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = next ?? system;
  for (const pane of panes) pane.refresh();
  if (tab === "merged") redrawSoon();
}

function listen(): void {
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || byId<HTMLDialogElement>("help").open) return;
    if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (target instanceof HTMLElement && target.getAttribute("role") === "tab" && /^Arrow(Left|Right)$/.test(event.key)) return;
    if (target === details && /^(Page|Home|Arrow)/.test(event.key)) return;
    const found = KEYS.find(([key]) => key === event.key || (key === "+" && event.key === "="));
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
  byId("zoom-in").addEventListener("click", () => desk.pane.zoom(0.6));
  byId("zoom-out").addEventListener("click", () => desk.pane.zoom(1 / 0.6));
  byId("whole").addEventListener("click", () => desk.pane.show(desk.pane.whole(), true));
  byId("svg").addEventListener("click", saveSvg);
  byId("png").addEventListener("click", savePng);
  byId("keys").addEventListener("click", showHelp);
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    desk.text = byId<HTMLInputElement>("text").value.trim();
    openTab("search");
  });
  rowSelect.addEventListener("change", () => active.choose(Number(rowSelect.value)));
  axisSelect.addEventListener("change", () => {
    for (const pane of panes) {
      pane.reset();
      pane.selection = null;
      const cursor = pane.cursor();
      const whole = pane.whole();
      pane.view = whole;
      if (cursor !== null) {
        const len = (whole.to - whole.from) / 20;
        pane.view = { from: Math.max(whole.from, cursor - len / 2), to: Math.max(whole.from, cursor - len / 2) + len };
      }
      pane.show(pane.view);
    }
  });
  byId("steps").append(...STEPS.map(([text, key, title, act]) => el("button", { type: "button", click: act, title: `${title} (${key})`, "aria-label": `${text} ${title}` }, text)));
  const all = el("input", { type: "checkbox", id: "steps-all", change: () => { setStepsAll(all.checked); remember(false); } });
  byId("steps").append(el("label", { title: "Steps go through all rows in the order of time (t); over calls and out of them, they stay in their row" }, all, "all rows"));
  tabs.addEventListener("keydown", (event) => {
    const all = [...tabs.querySelectorAll<HTMLElement>("[role=tab]")];
    const now = all.findIndex((button) => button.dataset.tab === tab);
    const next = event.key === "ArrowRight" ? now + 1 : event.key === "ArrowLeft" ? now - 1 : -1;
    const button = all[(next + all.length) % all.length];
    if (!/^Arrow(Left|Right)$/.test(event.key) || !button?.dataset.tab) return;
    openTab(button.dataset.tab);
    button.focus();
  });
  window.addEventListener("popstate", () => void restore());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
}

async function poll(): Promise<void> {
  for (;;) {
    const { recordings } = await ask<{ recordings: Recording[] }>("state");
    if (!panes.length) begin(recordings);
    for (const [index, recording] of recordings.entries()) {
      const pane = panes[index];
      if (!pane) continue;
      const wasReady = pane.recording.state === "ready";
      if (recording.state === "ready" && !wasReady) {
        const found = await pane.ask<{ functions: FunctionRow[] }>("functions");
        pane.functions = found.functions;
      }
      pane.update(recording);
    }
    fillRows();
    if (recordings.every(({ state: now }) => now !== "building")) break;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  await restore();
  document.documentElement.dataset.ready = "yes";
}

function begin(recordings: Recording[]): void {
  recordings.forEach((_, index) => {
    const pane = new Pane(index, host);
    panes.push(pane);
    byId("panes").append(pane.root);
  });
  document.title = `${recordings.map(({ name }) => name).join(", ")} – Cofi`;
  const names = Object.entries(PANELS).filter(([name]) => name !== "parting" || recordings.length > 1);
  tabs.append(...names.map(([name, { title }]) => el("button", {
    type: "button", role: "tab", id: `tab-${name}`, "data-tab": name, "aria-controls": "details", "aria-selected": "false", tabindex: -1, click: () => openTab(name),
  }, title)));
  const box = el("input", { type: "checkbox", id: "all", change: () => { setAll(box.checked); remember(false); redrawSoon(); } });
  byId("details").before(el("div", { class: "toolbar scope", id: "scope", hidden: true }, el("label", {}, box, " all rows")));
  const first = panes[0];
  if (first) host.activate(first);
}

theme();
listen();
poll().catch((error) => tell(`The server does not answer: ${error}`));
