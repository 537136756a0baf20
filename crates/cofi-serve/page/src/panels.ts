// What is told of the place, the function or the selection: one tab each.

import { type CodeInsn, type Event, type Hit, type Insn, type Params, type Parting, type Place, type Source, type Sum } from "./api.js";
import { count, el, link, table, time } from "./dom.js";
import { colourOf, colours } from "./paint.js";
import type { Pane } from "./pane.js";

/** What panels need of the page. */
export interface Desk {
  pane: Pane;
  panes: Pane[];
  fn: number | null;
  text: string;
  breakpoints: Map<string, { file: string; line: number }>;
  /** The part of the axis that is selected, or shown; and of which rows. */
  part(): Params;
  goTo(pane: Pane, row: number, at: number): void;
  chooseFunction(pane: Pane, fn: number, tab?: string): void;
  find(params: Params, forward: boolean): void;
  redraw(): void;
  tell(text: string): void;
}

export type Panel = (desk: Desk, into: HTMLElement, signal: AbortSignal) => Promise<void>;

const place = (source: Source): string => (source ? `${source[0].split("/").pop()}${source[1] ? `:${source[1]}` : ""}` : "");
const percent = (part: number, whole: number): string => (whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 2 : 1)} %` : "");
const note = (text: string): HTMLElement => el("p", { class: "note" }, text);

function functionLink(desk: Desk, fn: number, tab = "code"): Node | string {
  if (fn < 0) return "not known";
  return link(desk.pane.name(fn), () => desk.chooseFunction(desk.pane, fn, tab));
}

function when(desk: Desk, at: Place): string {
  if (!at.time) return "the trace tells no time";
  const [from, to] = at.time;
  const ticks = desk.pane.recording.ticks;
  return from === to ? `about ${time(from, ticks)}` : `between ${time(from, ticks)} and ${time(to, ticks)}`;
}

async function showPlace(desk: Desk, into: HTMLElement): Promise<void> {
  const at = desk.pane.place;
  if (!at) {
    into.replaceChildren(note("Click into the rows or the calls to see what ran there; or press Home, then step with n, i, c and o."));
    return;
  }
  const facts = table([["", ""], ["", ""]], [
    ["instruction", `${count(at.at)} of ${count(at.of)} in ${desk.pane.rowName(at.row)}`],
    ["time", when(desk, at)],
    ["address", el("code", {}, at.ip)],
    ["packets", `about byte ${count(at.offset)}`],
    ["source", at.source ? `${at.source[0]}${at.source[1] ? `:${at.source[1]}` : ""}` : "no lines are known"],
  ]);
  facts.querySelector("thead")?.remove();
  const stack = table(
    [["call", ""], ["", ""], ["at", ""], ["address", "mono"], ["began", "n"]],
    at.stack.map((frame) => [
      frame.function === null ? "not known" : functionLink(desk, frame.function),
      frame.kind === "call" ? "" : frame.kind,
      place(frame.source),
      frame.ip ?? "",
      link(count(frame.begin), () => desk.goTo(desk.pane, at.row, frame.begin), "go to where this call began"),
    ]),
    (index) => (at.stack[index]?.kind === "assumed" ? "off" : ""),
  );
  into.replaceChildren(el("div", { class: "split" }, el("div", {}, el("h2", {}, "Place"), facts), el("div", {}, el("h2", {}, "Open calls, innermost first"), stack)));
}

const sorting = { by: 2, up: false };

async function showTable(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  const found = await desk.pane.ask<{ insns: number; functions: Sum[]; count: number }>("table", desk.part(), signal);
  const order = (a: Sum, b: Sum): number => {
    if (sorting.by === 0) return desk.pane.name(a[0]).localeCompare(desk.pane.name(b[0]));
    return (b[sorting.by] ?? 0) - (a[sorting.by] ?? 0);
  };
  const rows = [...found.functions].sort((a, b) => (sorting.up ? order(b, a) : order(a, b))).slice(0, 500);
  const shown = table(
    [["function", ""], ["total", "n"], ["", "n"], ["itself", "n"], ["", "n"], ["calls", "n"], ["file", ""]],
    rows.map((sum) => [
      functionLink(desk, sum[0]), count(sum[2]), percent(sum[2], found.insns), count(sum[1]), percent(sum[1], found.insns), count(sum[3]),
      desk.pane.functions[sum[0]]?.[1]?.split("/").pop() ?? "",
    ]),
  );
  const keys: Record<number, number> = { 0: 0, 1: 2, 3: 1, 5: 3 };
  shown.querySelectorAll<HTMLElement>("thead tr > *").forEach((head, column) => {
    const by = keys[column];
    if (by === undefined) return;
    head.setAttribute("aria-sort", sorting.by === by ? (sorting.up ? "ascending" : "descending") : "none");
    const name = head.textContent ?? "";
    head.replaceChildren(el("button", {
      type: "button",
      click: () => {
        sorting.up = sorting.by === by && !sorting.up;
        sorting.by = by;
        desk.redraw();
      },
    }, name + (sorting.by === by ? (sorting.up ? " ▲" : " ▼") : "")));
  });
  into.replaceChildren(note(`${count(found.insns)} instructions, ${count(found.count)} functions in ${scope(desk)}.`), shown);
}

function scope(desk: Desk): string {
  const what = desk.pane.selection ? "the selection" : "what is shown";
  return desk.part().rows === "all" ? `${what}, all rows` : `${what}, ${desk.pane.rowName(desk.pane.row)}`;
}

async function showMerged(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  type Node = [number, number, number, number, number];
  const found = await desk.pane.ask<{ nodes: Node[]; shortest: number }>("merged", desk.part(), signal);
  const { nodes } = found;
  const depth: number[] = [];
  const left: number[] = [];
  const used: number[] = [];
  const all = nodes[0]?.[3] ?? 0;
  nodes.forEach((node, index) => {
    const parent = node[0];
    depth[index] = index === 0 ? 0 : (depth[parent] ?? 0) + 1;
    left[index] = index === 0 ? 0 : (used[parent] ?? left[parent] ?? 0);
    used[index] = left[index] ?? 0;
    if (index > 0) used[parent] = (left[index] ?? 0) + node[3];
  });
  const level = 17;
  const height = (Math.max(0, ...depth) + 1) * level;
  const canvas = el("canvas", { class: "merged", role: "img", "aria-label": "Merged flame graph. The tab Functions has the same numbers as a table." });
  canvas.style.height = `${height}px`;
  const tip = el("p", { class: "note", role: "status" }, "Point at a part to see its numbers; click to see its code.");
  into.replaceChildren(
    note(`${count(all)} instructions in ${scope(desk)}.${found.shortest > 0 ? ` Calls of fewer than ${count(found.shortest)} instructions count as parts of those around them.` : ""}`),
    tip, canvas,
  );
  const width = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext("2d");
  if (!context || all === 0) return;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const c = colours();
  nodes.forEach((node, index) => {
    const x = ((left[index] ?? 0) / all) * width;
    const w = (node[3] / all) * width;
    const y = (depth[index] ?? 0) * level;
    const name = index === 0 ? "all" : desk.pane.name(node[1]);
    context.fillStyle = index === 0 ? c.line : colourOf(name, c, ((desk.pane.functions[node[1]]?.[2] ?? 0) & 2) !== 0);
    context.fillRect(x, y, Math.max(0.5, w - (w > 3 ? 0.5 : 0)), level - 1);
    const most = Math.floor((w - 6) / 6.2);
    if (most > 3) {
      context.fillStyle = c.label;
      context.fillText(name.length <= most ? name : `${name.slice(0, most - 1)}…`, x + 3, y + level / 2);
    }
  });
  const at = (event: MouseEvent): number => {
    const wanted = Math.floor(event.offsetY / level);
    const value = (event.offsetX / width) * all;
    return nodes.findIndex((node, index) => depth[index] === wanted && (left[index] ?? 0) <= value && value < (left[index] ?? 0) + node[3]);
  };
  canvas.addEventListener("mousemove", (event) => {
    const index = at(event);
    const node = nodes[index];
    if (index > 0 && node) tip.textContent = `${desk.pane.name(node[1])}: ${count(node[3])} instructions (${percent(node[3], all)}), ${count(node[2])} in itself, ${count(node[4])} calls`;
  });
  canvas.addEventListener("click", (event) => {
    const node = nodes[at(event)];
    if (node && node[1] >= 0) desk.chooseFunction(desk.pane, node[1], "code");
  });
}

async function showNeighbours(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  const fn = desk.fn ?? desk.pane.place?.function ?? null;
  if (fn === null) {
    into.replaceChildren(note("Choose a function first: click a call, or a name."));
    return;
  }
  const found = await desk.pane.ask<{ callers: Sum[]; callees: Sum[]; shortest: number }>("neighbours", { ...desk.part(), function: fn }, signal);
  const side = (title: string, sums: Sum[]) => {
    const rows = sums.slice(0, 200).map((sum) => [functionLink(desk, sum[0], "neighbours"), count(sum[2]), count(sum[3])]);
    return el("div", {}, el("h2", {}, title), rows.length ? table([["function", ""], ["instructions", "n"], ["calls", "n"]], rows) : note("none"));
  };
  const name = desk.pane.name(fn);
  into.replaceChildren(
    note(`${scope(desk)}.${found.shortest > 0 ? ` Calls of fewer than ${count(found.shortest)} instructions are not seen here: zoom in or select less for all.` : ""}`),
    el("div", { class: "split" }, side(`Who called ${name}`, found.callers), side(`Whom ${name} called`, found.callees)),
  );
}

interface SourceText { path: string; lines: string[] | null; error?: string }
const sources = new Map<string, Promise<SourceText>>();

async function showCode(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  const { pane } = desk;
  const fn = desk.fn ?? pane.place?.function ?? null;
  if (fn === null) {
    into.replaceChildren(note("Choose a function first: click a call, or a name."));
    return;
  }
  const found = await pane.ask<{ insns: CodeInsn[]; whole: boolean }>("code", { ...desk.part(), function: fn }, signal);
  const paths = new Map<string, number>();
  for (const insn of found.insns) if (insn[5]) paths.set(insn[5][0], (paths.get(insn[5][0]) ?? 0) + 1);
  const main = [...paths].sort((a, b) => b[1] - a[1])[0]?.[0];
  const here = pane.place;
  const bar = el("div", { class: "toolbar" },
    el("h2", {}, pane.name(fn)),
    el("button", { type: "button", click: () => desk.find({ what: "function", function: fn }, false) }, "◀ previous call"),
    el("button", { type: "button", click: () => desk.find({ what: "function", function: fn }, true) }, "next call ▶"),
  );
  const asm = table(
    [["ran", "n"], ["address", "mono"], ["instruction", "mono"], ["taken / not", "n"], ["line", ""]],
    found.insns.map((insn) => [
      count(insn[3]),
      link(insn[0], () => desk.find({ what: "ip", value: insn[0] }, true), "go to the next time it runs"),
      insn[2],
      insn[4] ? `${count(insn[4][0])} / ${count(insn[4][1])}` : "",
      place(insn[5]),
    ]),
    (index) => {
      const insn = found.insns[index];
      return here && insn?.[0] === here.ip ? "here" : insn?.[3] === 0 ? "off" : "";
    },
  );
  const parts: Node[] = [el("div", {}, asm)];
  if (main) {
    const known = sources.get(`${pane.number} ${main}`) ?? pane.ask<SourceText>("source", { path: main });
    sources.set(`${pane.number} ${main}`, known);
    parts.unshift(sourceTable(desk, await known, main, found.insns));
  }
  if (!found.insns.length) {
    into.replaceChildren(bar, note(`It does not run in ${scope(desk)}.`));
    return;
  }
  const text = found.whole ? `Counts of ${scope(desk)}.` : `The range is too long to be counted whole: counts are of its beginning.`;
  into.replaceChildren(bar, note(text), el("div", { class: "split" }, ...parts));
  into.querySelector("tr.here")?.scrollIntoView({ block: "center" });
  into.scrollLeft = 0;
}

/** So many lines of a source are shown. */
const SOURCE_LINES = 4000;

function sourceTable(desk: Desk, text: SourceText, path: string, insns: CodeInsn[]): HTMLElement {
  const counts = new Map<number, number>();
  for (const insn of insns) {
    const line = insn[5]?.[0] === path ? insn[5][1] : null;
    if (line) counts.set(line, Math.max(counts.get(line) ?? 0, insn[3]));
  }
  const known = [...counts.keys()].sort((a, b) => a - b);
  const first = Math.max(1, (known[0] ?? 1) - 3);
  const last = Math.min((known.at(-1) ?? 0) + 3, text.lines?.length ?? 0);
  // What debugging information says of lines need not be true: there may be no end of them.
  const all = text.lines ? Array.from({ length: Math.max(0, Math.min(last - first + 1, SOURCE_LINES)) }, (_, index) => first + index) : known.slice(0, SOURCE_LINES);
  const rows: (string | Node)[][] = [];
  const numbers: number[] = [];
  for (const line of all) {
    const content = text.lines?.[line - 1];
    const ran = counts.get(line);
    const key = `${path}:${line}`;
    const isSet = desk.breakpoints.has(key);
    const mark = ran === undefined ? "" : el("button", {
      type: "button", class: "link", "aria-pressed": String(isSet), "aria-label": `Breakpoint at line ${line}`, title: "Breakpoint",
      click: () => {
        if (!desk.breakpoints.delete(key)) desk.breakpoints.set(key, { file: path, line });
        desk.redraw();
      },
    }, isSet ? "●" : "○");
    rows.push([
      mark, ran === undefined ? "" : count(ran), String(line),
      ran === undefined ? "" : link("◀", () => desk.find({ what: "line", value: path, line }, false), `go to the previous time line ${line} ran`),
      ran === undefined ? "" : link("▶", () => desk.find({ what: "line", value: path, line }, true), `go to the next time line ${line} runs`),
      content ?? "",
    ]);
    numbers.push(line);
  }
  const here = desk.pane.place?.source;
  const shown = table([["", ""], ["ran", "n"], ["line", "n"], ["", ""], ["", ""], ["source", "mono"]], rows, (index) => {
    const line = numbers[index];
    return here && here[0] === path && here[1] === line ? "here" : counts.get(line ?? 0) ? "" : "off";
  });
  return el("div", {}, el("h2", {}, path), text.lines ? null : note(`The source cannot be shown: ${text.error ?? "it is not there"}.`), shown);
}

async function showInsns(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  const at = desk.pane.place;
  if (!at) return showPlace(desk, into);
  const { pane } = desk;
  const [insns, packets] = await Promise.all([
    pane.ask<{ insns: Insn[] }>("insns", { row: at.row, at: at.at, before: 60, behind: 140 }, signal),
    pane.ask<{ packets: [number, number, string, boolean][] }>("packets", { row: at.row, offset: at.offset, before: 20, behind: 40 }, signal),
  ]);
  const rows: (string | Node)[][] = [];
  const marks: string[] = [];
  for (const insn of insns.insns) {
    for (const event of insn.events) {
      rows.push(["", "", el("em", { class: event.kind === "gap" ? "bad" : "" }, `${event.kind}: ${event.text}`), "", ""]);
      marks.push("off");
    }
    const indent = "· ".repeat(Math.max(0, Math.min(12, insn.depth - (at.stack.at(-1)?.depth ?? 0))));
    rows.push([
      link(count(insn.at), () => desk.goTo(pane, at.row, insn.at), "go there"), insn.ip, insn.text,
      `${indent}${insn.function === null ? "" : pane.name(insn.function)}`, place(insn.source),
    ]);
    marks.push(insn.at === at.at ? "here" : "");
  }
  const list = table([["", "n"], ["address", "mono"], ["instruction", "mono"], ["function", ""], ["line", ""]], rows, (index) => marks[index] ?? "");
  const bytes = table([["byte", "n"], ["packet", "mono"]], packets.packets.map(([offset, , text]) => [count(offset), text]),
    (index) => (packets.packets[index]?.[3] ? "bad" : ""));
  into.replaceChildren(el("div", { class: "split" },
    el("div", {}, el("h2", {}, "Instructions that ran"), list), el("div", {}, el("h2", {}, "Packets about there"), bytes)));
  into.querySelector("tr.here")?.scrollIntoView({ block: "center" });
  into.scrollLeft = 0;
}

async function showEvents(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  const found = await desk.pane.ask<{ events: Event[]; whole: boolean }>("events", { ...desk.part(), most: 1000 }, signal);
  const rows = found.events.map((event) => [
    link(count(event.at), () => desk.goTo(desk.pane, event.row ?? desk.pane.row, event.at), "go there"),
    event.time === null ? "" : time(event.time, desk.pane.recording.ticks), desk.pane.rowName(event.row ?? desk.pane.row), event.kind, event.text,
  ]);
  const shown = rows.length ? table([["instruction", "n"], ["time", "n"], ["row", ""], ["event", ""], ["", ""]], rows,
    (index) => (found.events[index]?.kind === "gap" ? "bad" : "")) : note("None.");
  into.replaceChildren(note(`Events in ${scope(desk)}.${found.whole ? "" : " There are more: zoom in or select less."}`), shown);
}

async function showSearch(desk: Desk, into: HTMLElement, signal: AbortSignal): Promise<void> {
  if (!desk.text) {
    into.replaceChildren(note("Search for a function, an address (0x…) or a line (file.c:12)."));
    return;
  }
  const { hits } = await desk.pane.ask<{ hits: Hit[] }>("search", { text: desk.text }, signal);
  const both = (params: Params): Node => el("span", { class: "group" },
    el("button", { type: "button", click: () => desk.find(params, false) }, "◀ previous"),
    el("button", { type: "button", click: () => desk.find(params, true) }, "next ▶"));
  const rows = hits.map((hit): (string | Node)[] => {
    switch (hit.kind) {
      case "function": {
        const known = desk.pane.functions[hit.function];
        return [functionLink(desk, hit.function), known ? `${count(known[4])} calls, ${count(known[3])} instructions of itself` : "", both({ what: "function", function: hit.function })];
      }
      case "ip": return [el("code", {}, hit.ip), "address", both({ what: "ip", value: hit.ip })];
      case "line": return [`${hit.file}:${hit.line}`, "line", both({ what: "line", value: hit.file, line: hit.line })];
    }
  });
  into.replaceChildren(note(`${count(hits.length)} found for “${desk.text}”.`), rows.length ? table([["", ""], ["", ""], ["go to", ""]], rows) : "");
}

async function showParting(desk: Desk, into: HTMLElement): Promise<void> {
  into.replaceChildren(note("Comparing…"));
  const [first, second] = desk.panes;
  if (!first || !second) return;
  const list = await first.ask<Parting[]>("parting");
  const parts: (Node | string)[] = [];
  for (const pair of list) {
    const names = pair.rows.map((row, side) => (row === null ? "nothing" : (side === 0 ? first : second).rowName(row)));
    parts.push(el("h2", {}, `${names[0]} and ${names[1]}`));
    if (pair.same) parts.push(note("They ran the same."));
    const rows = pair.places.map((found) => [
      link("show", () => {
        found.turns.forEach((turn, side) => {
          const [pane, row] = [desk.panes[side], pair.rows[side]];
          if (pane && row !== null && row !== undefined) desk.goTo(pane, row, Math.max(0, turn.at - 1));
        });
      }, "this place in both recordings"),
      found.why,
      ...found.turns.map((turn) => `${turn.function ?? ""} after ${count(turn.at)}, ${count(turn.skipped)} apart${turn.entered.length ? `: ${turn.entered.slice(0, 4).join(", ")}` : ""}`),
    ]);
    if (rows.length) parts.push(table([["", ""], ["why", ""], ["first", ""], ["second", ""]], rows));
  }
  into.replaceChildren(...parts);
}

export const PANELS: Record<string, { title: string; show: Panel; usesPlace: boolean; usesPart: boolean }> = {
  place: { title: "Place", show: showPlace, usesPlace: true, usesPart: false },
  functions: { title: "Functions", show: showTable, usesPlace: false, usesPart: true },
  merged: { title: "Flame graph", show: showMerged, usesPlace: false, usesPart: true },
  neighbours: { title: "Callers", show: showNeighbours, usesPlace: false, usesPart: true },
  code: { title: "Code", show: showCode, usesPlace: true, usesPart: true },
  insns: { title: "Instructions", show: showInsns, usesPlace: true, usesPart: false },
  events: { title: "Events", show: showEvents, usesPlace: false, usesPart: true },
  search: { title: "Search", show: showSearch, usesPlace: false, usesPart: false },
  parting: { title: "Where they part", show: showParting, usesPlace: false, usesPart: false },
};
