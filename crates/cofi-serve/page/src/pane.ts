// A recording: its minimap, its rows and the calls of one row.

import { type Axis, CODE, type Call, type Event, type FunctionRow, type Params, type Place, type Ran, type Recording, type Row, SIGNAL, type Strip, ask, isAbort } from "./api.js";
import { count, el, time } from "./dom.js";
import { CanvasPainter, type Colours, type Painter, SvgPainter, colourOf, colours } from "./paint.js";

export const GUTTER = 148;
const ROW = 24;
/** How high the tick of a change of code is. */
const CHANGE = 13;
const LEVEL = 17;

interface Range { from: number; to: number }
/** Bins of a range, asked for a view. */
interface StripData extends Range { view: Range; bins: number; rows: Map<number, Strip> }
interface FlameData extends Range { row: number; calls: Call[]; shortest: number; whole: boolean }
interface EventData extends Range { row: number; events: Event[]; whole: boolean }

/** Events are asked for one by one where no more than this ran; else the index tells where about there are some. */
const EVENTFUL = 4_000_000;

/** What a pane tells the page. */
export interface Host {
  axis(): Axis;
  /** The user looks at this pane. */
  activate(pane: Pane): void;
  /** The view, the row, the selection or the cursor changed. */
  changed(pane: Pane, isJump: boolean): void;
  chooseFunction(pane: Pane, fn: number): void;
  tell(text: string): void;
}

/** Waits until things are quiet. */
function later(act: () => void, wait: number): () => void {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(act, wait);
  };
}

export class Pane {
  readonly root: HTMLElement;
  readonly #title = el("div", { class: "title" });
  readonly #mini = el("canvas", { class: "mini", "aria-hidden": "true" });
  readonly #scroll: HTMLDivElement;
  readonly #inner = el("div", { class: "inner" });
  readonly #tracks: HTMLCanvasElement;
  readonly #flame: HTMLCanvasElement;
  readonly #tip = el("div", { class: "tip", hidden: true });
  recording: Recording = { name: "", state: "building" };
  functions: FunctionRow[] = [];
  view: Range = { from: 0, to: 1 };
  row = 0;
  place: Place | null = null;
  selection: Range | null = null;
  #overview: Ran | null = null;
  #strip: StripData | null = null;
  #calls: FlameData | null = null;
  /** None where too much ran. */
  #events: EventData | null = null;
  #level = 0;
  #asked = { strip: new AbortController(), flame: new AbortController(), mini: new AbortController(), events: new AbortController() };
  #isWaiting = false;

  constructor(readonly number: number, readonly host: Host) {
    this.#tracks = el("canvas", {
      class: "tracks", tabindex: "0", role: "img",
      "aria-label": "Threads over the axis: how much ran, and which function. Arrow keys move, plus and minus zoom, page up and down choose the thread.",
    });
    this.#flame = el("canvas", {
      class: "flame", tabindex: "0", role: "img",
      "aria-label": "Calls of the chosen thread within each other. Arrow keys move, plus and minus zoom. The tab Place tells the calls as text.",
    });
    this.#inner.append(this.#tracks);
    this.#scroll = el("div", { class: "scroll" }, this.#inner);
    this.#scroll.tabIndex = -1;
    const box = el("div", { class: "flamebox" }, this.#flame);
    this.root = el("section", { class: "pane", "aria-label": `Recording ${number + 1}` }, this.#title, this.#mini, this.#scroll, box, this.#tip);
    this.#scroll.addEventListener("scroll", () => this.refresh());
    new ResizeObserver(() => this.refresh()).observe(this.root);
    this.#listen();
  }

  get rows(): Row[] {
    return this.recording.rows ?? [];
  }

  get width(): number {
    return Math.max(1, this.#tracks.clientWidth - GUTTER);
  }

  /** All of the axis. */
  whole(): Range {
    const most = (value: (row: Row) => number) => this.rows.reduce((all, row) => Math.max(all, value(row)), 0);
    switch (this.host.axis()) {
      case "time": return { from: 0, to: Math.max(1, this.recording.end ?? 0) };
      case "insns": return { from: 0, to: Math.max(1, most((row) => row.insns)) };
      case "offset": return { from: 0, to: Math.max(1, most((row) => row.bytes)) };
    }
  }

  rowName(number: number): string {
    const row = this.rows[number];
    if (!row) return "";
    if (row.cpu !== null) return `processor ${row.cpu}`;
    return row.comm ? `${row.comm} ${row.tid}` : `thread ${row.tid}`;
  }

  name(fn: number | null): string {
    return fn === null || fn < 0 ? "not known" : (this.functions[fn]?.[0] ?? "…");
  }

  ask<T>(question: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
    return ask<T>(question, { r: this.number, ...params }, signal);
  }

  /** The recording as the server has it now. */
  update(recording: Recording): void {
    const before = this.recording;
    this.recording = recording;
    const { state, error, note, done } = recording;
    const insns = this.rows.reduce((sum, row) => sum + row.insns, 0);
    const gaps = this.rows.reduce((sum, row) => sum + row.gaps, 0);
    const parts: (string | Node)[] = [`${recording.name}: `];
    if (state === "failed") parts.push(el("span", { class: "bad" }, error ?? "failed"));
    if (state === "building") {
      parts.push("building the index ", el("progress", { value: done ?? 0, max: 1, "aria-label": "Index" }), " ");
    }
    if (this.rows.length) {
      parts.push(`${count(this.rows.length)} ${this.rows.length === 1 ? "row" : "rows"}, ${count(insns)} instructions, ${count(gaps)} ${gaps === 1 ? "gap" : "gaps"}`);
    }
    if (note) parts.push(el("span", {}, ` (${note})`));
    this.#title.replaceChildren(...parts);
    this.#inner.style.height = `${Math.max(1, this.rows.length) * ROW + 2}px`;
    const isNew = before.rows?.length !== recording.rows?.length || before.end !== recording.end || before.state !== state;
    if (isNew) this.#overview = this.#strip = null;
    if (this.view.to <= 1 || (before.state === "building" && this.#isWhole(before))) this.view = this.whole();
    this.refresh();
  }

  #isWhole(before: Recording): boolean {
    return this.view.from === 0 && this.view.to >= (before.end ?? 0);
  }

  show(range: Range, isJump = false): void {
    const whole = this.whole();
    const least = this.host.axis() === "time" ? 20 : 8;
    let len = Math.min(Math.max(range.to - range.from, least), Math.max(whole.to - whole.from, least));
    const from = Math.max(whole.from - len * 0.02, Math.min(range.from, whole.to + len * 0.02 - len));
    len = Math.max(len, least);
    this.view = { from, to: from + len };
    this.refresh();
    this.host.changed(this, isJump);
  }

  /** Around a part of the view; without one, around the cursor if it is in view. */
  zoom(factor: number, part?: number): void {
    const { from, to } = this.view;
    const cursor = this.cursor();
    const centre = part ?? (cursor !== null && cursor >= from && cursor <= to ? (cursor - from) / (to - from) : 0.5);
    const at = from + (to - from) * centre;
    const len = (to - from) * factor;
    this.show({ from: at - len * centre, to: at + len * (1 - centre) });
  }

  pan(part: number): void {
    const len = this.view.to - this.view.from;
    this.show({ from: this.view.from + len * part, to: this.view.to + len * part });
  }

  choose(row: number): void {
    if (row < 0 || row >= this.rows.length || row === this.row) return;
    this.row = row;
    this.place = null;
    this.#calls = null;
    this.#level = 0;
    const top = row * ROW;
    if (top < this.#scroll.scrollTop || top + ROW > this.#scroll.scrollTop + this.#scroll.clientHeight) this.#scroll.scrollTop = top - ROW;
    this.refresh();
    this.host.changed(this, false);
  }

  /** Where the cursor is on the axis. */
  cursor(place = this.place): number | null {
    if (!place) return null;
    switch (this.host.axis()) {
      case "time": return place.time ? place.time[0] : null;
      case "insns": return place.at;
      case "offset": return place.offset;
    }
  }

  /** Goes to a place; the view follows if it does not show it. */
  async goTo(row: number, at: number, isJump = true): Promise<void> {
    const place = await this.ask<Place>("place", { row, at });
    if (row !== this.row) {
      this.row = row;
      this.#calls = null;
      this.#level = 0;
    }
    this.place = place;
    const cursor = this.cursor();
    const { from, to } = this.view;
    if (cursor !== null && (cursor < from || cursor > to)) {
      const len = to - from;
      this.view = { from: cursor - len / 2, to: cursor + len / 2 };
    }
    const innermost = place.stack[0]?.depth ?? 0;
    const visible = Math.max(1, Math.floor(this.#flame.clientHeight / LEVEL) - 2);
    const top = Math.max(0, innermost - this.#lowest());
    if (top < this.#level || top >= this.#level + visible) this.#level = Math.max(0, top - visible + 2);
    this.refresh();
    this.host.changed(this, isJump);
  }

  #lowest(): number {
    return Math.min(0, ...(this.#calls?.calls ?? []).slice(0, 5000).map((call) => call[2]));
  }

  /** Paints what is known, and asks for what is not. */
  refresh(): void {
    if (!this.#isWaiting) {
      this.#isWaiting = true;
      requestAnimationFrame(() => {
        this.#isWaiting = false;
        this.#paint();
      });
    }
    this.#fetch();
  }

  /** Another axis or theme. */
  reset(): void {
    this.#overview = this.#strip = this.#calls = this.#events = null;
  }

  #visible(): number[] {
    const first = Math.floor(this.#scroll.scrollTop / ROW);
    const shown = Math.ceil(Math.max(this.#scroll.clientHeight, ROW) / ROW) + 1;
    return this.rows.map((_, index) => index).slice(first, first + Math.min(shown, 64));
  }

  readonly #fetch = later(() => {
    if (!this.rows.length || this.recording.state === "failed") return;
    void this.#fetchMini();
    void this.#fetchStrip();
    void this.#fetchFlame();
    void this.#fetchEvents();
  }, 25);

  #range(range: Range): Params {
    return { axis: this.host.axis(), from: Math.max(0, Math.floor(range.from)), to: Math.max(0, Math.ceil(range.to)) };
  }

  async #fetchMini(): Promise<void> {
    if (this.#overview) return;
    this.#asked.mini.abort();
    const asked = (this.#asked.mini = new AbortController());
    const range = this.whole();
    const bins = Math.min(2000, this.width);
    try {
      this.#overview = await this.ask<Ran>("sum", { ...this.#range(range), bins }, asked.signal);
      this.refresh();
    } catch (error) {
      if (!isAbort(error)) this.host.tell(String(error));
    }
  }

  async #fetchStrip(): Promise<void> {
    const wanted = this.#visible();
    const { from, to } = this.view;
    const range = { from: Math.max(0, Math.floor(from)), to: Math.ceil(to) };
    // No bin is smaller than a nanosecond, an instruction or a byte.
    const bins = Math.max(1, Math.min(4000, Math.ceil(this.width), range.to - range.from));
    const known = this.#strip;
    if (known && known.view.from === from && known.view.to === to && known.bins === bins && wanted.every((row) => known.rows.has(row))) return;
    this.#asked.strip.abort();
    const asked = (this.#asked.strip = new AbortController());
    try {
      const found = await this.ask<{ rows: Strip[] }>("strip", { ...this.#range(range), bins, rows: wanted.join(",") }, asked.signal);
      this.#strip = { ...range, view: { from, to }, bins, rows: new Map(found.rows.map((strip) => [strip.row, strip])) };
      this.refresh();
    } catch (error) {
      if (!isAbort(error)) this.host.tell(String(error));
    }
  }

  async #fetchFlame(): Promise<void> {
    if (this.recording.state !== "ready") return;
    const { from, to } = this.view;
    const known = this.#calls;
    if (known && known.row === this.row && known.from === from && known.to === to) return;
    this.#asked.flame.abort();
    const asked = (this.#asked.flame = new AbortController());
    const row = this.row;
    try {
      const params = { ...this.#range(this.view), row, width: Math.min(4000, Math.ceil(this.width * 1.5)) };
      const found = await this.ask<{ calls: Call[]; shortest: number; whole: boolean }>("flame", params, asked.signal);
      this.#calls = { from, to, row, ...found };
      this.refresh();
    } catch (error) {
      if (!isAbort(error)) this.host.tell(String(error));
    }
  }

  /** How much the chosen row ran in the view, once that is known. */
  #ran(): number | null {
    const strip = this.#strip;
    if (!strip || strip.view.from !== this.view.from || strip.view.to !== this.view.to) return null;
    return strip.rows.get(this.row)?.insns.reduce((sum, value) => sum + value, 0) ?? null;
  }

  async #fetchEvents(): Promise<void> {
    const ran = this.#ran();
    if (this.recording.state !== "ready" || ran === null) return;
    const { from, to } = this.view;
    const known = this.#events;
    if (known && known.row === this.row && known.from === from && known.to === to) return;
    this.#asked.events.abort();
    if (ran > EVENTFUL) {
      this.#events = null;
      return;
    }
    const asked = (this.#asked.events = new AbortController());
    const row = this.row;
    try {
      const found = await this.ask<{ events: Event[]; whole: boolean }>("events", { ...this.#range(this.view), rows: String(row), most: 2000 }, asked.signal);
      this.#events = { from, to, row, ...found };
      this.refresh();
    } catch (error) {
      if (!isAbort(error)) this.host.tell(String(error));
    }
  }

  #x(value: number): number {
    const { from, to } = this.view;
    return GUTTER + ((value - from) / (to - from)) * this.width;
  }

  #value(x: number): number {
    const { from, to } = this.view;
    return from + ((x - GUTTER) / this.width) * (to - from);
  }

  #paint(): void {
    const c = colours();
    const canvas = this.#tracks;
    const height = Math.max(ROW, Math.min(this.rows.length * ROW + 2, this.#scroll.clientHeight || ROW * this.rows.length));
    canvas.style.height = `${height}px`;
    this.#paintMini(new CanvasPainter(this.#mini, c.panel), c);
    this.#paintTracks(new CanvasPainter(canvas, c.back), c);
    this.#paintFlame(new CanvasPainter(this.#flame, c.back), c);
  }

  #paintMini(p: Painter, c: Colours): void {
    const whole = this.whole();
    const known = this.#overview;
    const width = p.width - GUTTER;
    if (known) {
      const most = known.insns.reduce((all, value) => Math.max(all, value), 1);
      const step = width / known.insns.length;
      known.insns.forEach((value, index) => {
        const h = Math.sqrt(value / most) * (p.height - 4);
        if (value > 0) p.rect(GUTTER + index * step, p.height - 1 - h, Math.max(step, 0.6), h, c.faint);
      });
      for (const index of known.gaps) p.rect(GUTTER + index * step - 1, 0, Math.max(step, 2), p.height, c.gap);
    }
    const x = (value: number) => GUTTER + ((value - whole.from) / (whole.to - whole.from)) * width;
    const [from, to] = [Math.max(GUTTER, x(this.view.from)), Math.min(p.width, x(this.view.to))];
    p.rect(from, 0, Math.max(2, to - from), p.height, c.select);
    p.rect(from, 0, 1, p.height, c.accent);
    p.rect(Math.max(from + 1, to - 1), 0, 1, p.height, c.accent);
    p.text(8, p.height / 2, this.axisText(this.view.to - this.view.from), c.faint, GUTTER - 12);
  }

  axisText(value: number): string {
    switch (this.host.axis()) {
      case "time": return time(Math.round(value), this.recording.ticks);
      case "insns": return `${count(Math.round(value))} insns`;
      case "offset": return `${count(Math.round(value))} bytes`;
    }
  }

  #paintTracks(p: Painter, c: Colours): void {
    const top = this.#scroll.scrollTop;
    const strip = this.#strip;
    for (const number of this.#visible()) {
      const y = number * ROW - top;
      if (number === this.row) p.rect(0, y, p.width, ROW - 1, c.panel);
      const data = strip?.rows.get(number);
      if (strip && data) {
        const most = Math.max(1, ...data.insns);
        const size = (strip.to - strip.from) / strip.bins;
        data.insns.forEach((value, index) => {
          if (value <= 0) return;
          const x = this.#x(strip.from + index * size);
          const w = Math.max(0.7, this.#x(strip.from + (index + 1) * size) - x);
          if (x + w < GUTTER || x > p.width) return;
          const h = 2 + Math.sqrt(value / most) * (ROW - 6);
          const fn = data.functions[index] ?? -1;
          p.rect(Math.max(x, GUTTER), y + ROW - 2 - h, w, h, fn < 0 ? c.faint : colourOf(this.name(fn), c));
        });
        for (const index of data.gaps) {
          const x = this.#x(strip.from + index * size);
          const w = Math.max(2, this.#x(strip.from + (index + 1) * size) - x);
          if (x >= GUTTER) p.rect(x, y, w, ROW - 2, c.gap);
        }
      }
      if (number === this.row && this.#events?.row === number) this.#paintEvents(p, c, y);
      else if (strip && data) {
        const size = (strip.to - strip.from) / strip.bins;
        for (const [index, kinds] of data.events) {
          const x = this.#x(strip.from + index * size);
          if (x < GUTTER || x > p.width) continue;
          p.rect(x - 0.5, y, 1, 5, c.faint);
          if (kinds & CODE) p.rect(x - 0.5, y, 1, CHANGE, c.text);
          if (kinds & SIGNAL) p.rect(x - 0.5, y, 1, ROW - 2, c.accent);
        }
      }
      p.rect(0, y, GUTTER, ROW - 1, number === this.row ? c.panel : c.back);
      p.text(8, y + ROW / 2, this.rowName(number), number === this.row ? c.text : c.faint, GUTTER - 14);
      p.rect(0, y + ROW - 1, p.width, 1, c.line);
    }
    this.#marks(p, c);
  }

  /** A tick at the top of the row for each event; gaps are red already. */
  #paintEvents(p: Painter, c: Colours, y: number): void {
    const known = this.#events;
    if (!known || known.row !== this.row) return;
    let last = Number.NEGATIVE_INFINITY;
    for (const { value, kind } of known.events) {
      if (value === null || value === undefined || kind === "gap") continue;
      const x = this.#x(value);
      const height = kind === "signal" ? ROW - 2 : kind === "code" ? CHANGE : 6;
      if (x < GUTTER || x > p.width || (x - last < 1 && height <= 6)) continue;
      last = x;
      p.rect(x - 0.75, y, 1.5, height, kind === "signal" ? c.accent : c.text);
    }
  }

  #marks(p: Painter, c: Colours): void {
    if (this.selection) {
      const [from, to] = [this.#x(this.selection.from), this.#x(this.selection.to)];
      const x = Math.max(GUTTER, from);
      if (to > GUTTER) p.rect(x, 0, Math.max(1, to - x), p.height, c.select);
    }
    const cursor = this.cursor();
    if (cursor !== null) {
      const x = this.#x(cursor);
      if (x >= GUTTER && x <= p.width) p.rect(x - 0.5, 0, 1, p.height, c.cursor);
    }
  }

  #paintFlame(p: Painter, c: Colours): void {
    const known = this.#calls;
    if (this.recording.state === "building") {
      p.text(GUTTER + 8, 14, "The calls come with the index.", c.faint, p.width);
    }
    if (known && known.row === this.row) {
      const lowest = this.#lowest();
      for (const call of known.calls) {
        const [begin, end, depth, fn, flags] = call;
        const y = (depth - lowest - this.#level) * LEVEL + 2;
        if (y < -LEVEL || y > p.height) continue;
        const x = Math.max(GUTTER, this.#x(begin));
        const to = Math.min(p.width, this.#x(end));
        const w = to - x;
        if (w <= 0 && this.#x(begin) < GUTTER) continue;
        const name = this.name(fn);
        p.rect(x, y, Math.max(0.6, w - (w > 3 ? 0.5 : 0)), LEVEL - 1, colourOf(name, c, (flags & 2) !== 0));
        if (flags & 1) p.hatch(x, y, w, LEVEL - 1, c.faint);
        if (w > 24) p.text(x + 3, y + LEVEL / 2, name, c.label, w - 5);
      }
      p.rect(0, 0, GUTTER, p.height, c.back);
      p.text(8, 11, this.rowName(this.row), c.text, GUTTER - 12);
      if (known.shortest > 0) p.text(8, 11 + LEVEL, `calls of ${count(known.shortest)}+ insns`, c.faint, GUTTER - 12);
      if (!known.whole) p.text(8, 11 + 2 * LEVEL, "not all are shown", c.gap, GUTTER - 12);
      if (this.#events && !this.#events.whole) p.text(8, 11 + 3 * LEVEL, "not all events", c.faint, GUTTER - 12);
    }
    this.#marks(p, c);
  }

  /** The picture below others in SVG; its height. */
  toSvg(top: number): { painters: SvgPainter[]; height: number } {
    const c = colours();
    const painters: SvgPainter[] = [];
    let height = 0;
    const parts: [HTMLCanvasElement, (p: Painter, c: Colours) => void][] = [
      [this.#mini, (p) => this.#paintMini(p, c)], [this.#tracks, (p) => this.#paintTracks(p, c)], [this.#flame, (p) => this.#paintFlame(p, c)],
    ];
    for (const [canvas, paint] of parts) {
      const painter = new SvgPainter(canvas.clientWidth, canvas.clientHeight, top + height);
      paint(painter, c);
      painters.push(painter);
      height += canvas.clientHeight;
    }
    return { painters, height };
  }

  canvases(): HTMLCanvasElement[] {
    return [this.#mini, this.#tracks, this.#flame];
  }

  /** The call at a point of the flame chart. */
  #callAt(x: number, y: number): Call | null {
    const known = this.#calls;
    if (!known || known.row !== this.row || x < GUTTER) return null;
    const depth = Math.floor((y - 2) / LEVEL) + this.#level + this.#lowest();
    const value = this.#value(x);
    const slack = (this.view.to - this.view.from) / this.width;
    let found: Call | null = null;
    for (const call of known.calls) {
      if (call[2] === depth && call[0] - slack / 2 <= value && call[1] + slack / 2 >= value) found = call;
    }
    return found;
  }

  /** The place at a value of the axis. */
  async placeAt(row: number, value: number): Promise<number | null> {
    const found = await this.ask<{ at: number | null }>("at", { row, axis: this.host.axis(), value: Math.max(0, Math.round(value)) });
    return found.at;
  }

  #listen(): void {
    for (const canvas of [this.#tracks, this.#flame]) {
      canvas.addEventListener("wheel", (event) => this.#wheel(canvas, event), { passive: false });
      canvas.addEventListener("focus", () => this.host.activate(this));
      this.#drag(canvas);
    }
    const move = (event: PointerEvent) => {
      const box = this.#mini.getBoundingClientRect();
      const whole = this.whole();
      const part = (event.clientX - box.left - GUTTER) / Math.max(1, box.width - GUTTER);
      const len = this.view.to - this.view.from;
      const at = whole.from + part * (whole.to - whole.from);
      this.show({ from: at - len / 2, to: at + len / 2 });
    };
    this.#mini.addEventListener("pointerdown", (event) => {
      this.#mini.setPointerCapture(event.pointerId);
      this.host.activate(this);
      move(event);
    });
    this.#mini.addEventListener("pointermove", (event) => {
      if (event.buttons) move(event);
    });
    this.#flame.addEventListener("dblclick", (event) => {
      const call = this.#callAt(event.offsetX, event.offsetY);
      if (call) {
        const margin = (call[1] - call[0]) * 0.02;
        this.show({ from: call[0] - margin, to: call[1] + margin }, true);
      }
    });
    this.#flame.addEventListener("pointerleave", () => (this.#tip.hidden = true));
  }

  #wheel(canvas: HTMLCanvasElement, event: WheelEvent): void {
    const scrolls = !event.ctrlKey && event.shiftKey;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    // Many threads are scrolled where their names are.
    if (canvas === this.#tracks && event.offsetX < GUTTER) return;
    event.preventDefault();
    this.host.activate(this);
    if (sideways || scrolls) return this.pan((sideways ? event.deltaX : event.deltaY) / this.width);
    if (canvas === this.#flame && event.altKey) {
      this.#level = Math.max(0, this.#level + Math.sign(event.deltaY));
      return this.refresh();
    }
    const centre = Math.max(0, Math.min(1, (event.offsetX - GUTTER) / this.width));
    this.zoom(Math.exp(event.deltaY * (event.ctrlKey ? 0.01 : 0.0018)), centre);
  }

  /** Drags select on the rows and move the flame chart; two pointers pinch; a click goes to a place. */
  #drag(canvas: HTMLCanvasElement): void {
    const pointers = new Map<number, PointerEvent>();
    let start: { x: number; y: number; view: Range; level: number; distance: number } | null = null;
    let moved = false;
    const distance = () => {
      const [a, b] = [...pointers.values()];
      return a && b ? Math.abs(a.clientX - b.clientX) : 0;
    };
    canvas.addEventListener("pointerdown", (event) => {
      this.host.activate(this);
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      start = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, level: this.#level, distance: distance() };
      moved = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas === this.#flame && !event.buttons) this.#showTip(event);
      if (!start || !pointers.has(event.pointerId)) return;
      pointers.set(event.pointerId, event);
      if (pointers.size === 2 && start.distance > 0) {
        const factor = start.distance / Math.max(8, distance());
        const { from, to } = start.view;
        const centre = (from + to) / 2;
        moved = true;
        return this.show({ from: centre - ((to - from) / 2) * factor, to: centre + ((to - from) / 2) * factor });
      }
      const dx = event.offsetX - start.x;
      if (Math.abs(dx) < 4 && Math.abs(event.offsetY - start.y) < 4 && !moved) return;
      moved = true;
      if (canvas === this.#flame) {
        const by = (-dx / this.width) * (start.view.to - start.view.from);
        this.#level = Math.max(0, start.level - Math.round((event.offsetY - start.y) / LEVEL));
        this.show({ from: start.view.from + by, to: start.view.to + by });
      } else {
        const [a, b] = [this.#value(start.x), this.#value(event.offsetX)];
        this.selection = { from: Math.min(a, b), to: Math.max(a, b) };
        this.refresh();
      }
    });
    const end = (event: PointerEvent) => {
      pointers.delete(event.pointerId);
      if (!start) return;
      const begun = start;
      start = null;
      if (moved) return this.host.changed(this, false);
      if (event.type === "pointerup") void this.#click(canvas, begun.x, begun.y);
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
  }

  async #click(canvas: HTMLCanvasElement, x: number, y: number): Promise<void> {
    let row = this.row;
    if (canvas === this.#tracks) {
      row = Math.floor((y + this.#scroll.scrollTop) / ROW);
      if (!this.rows[row]) return;
      this.selection = null;
      if (x < GUTTER) return this.choose(row);
    }
    if (x < GUTTER || this.recording.state !== "ready") return;
    try {
      const call = canvas === this.#flame ? this.#callAt(x, y) : null;
      if (call && call[3] >= 0) this.host.chooseFunction(this, call[3]);
      let at = await this.placeAt(row, this.#value(x));
      if (at === null) return;
      // What is clicked at is what is shown.
      if (call) at = Math.max(call[5], Math.min(at, call[6] - 1));
      const most = (this.rows[row]?.insns ?? 0) - 1;
      if (most >= 0) await this.goTo(row, Math.min(at, most), false);
    } catch (error) {
      this.host.tell(String(error));
    }
  }

  #showTip(event: PointerEvent): void {
    const call = this.#callAt(event.offsetX, event.offsetY);
    this.#tip.hidden = !call;
    if (!call) return;
    const [begin, end, , fn, flags, from, to] = call;
    const kind = flags & 1 ? " (open before the trace: assumed)" : flags & 2 ? " (inlined)" : "";
    this.#tip.replaceChildren(
      el("strong", {}, this.name(fn)), kind, el("br"),
      `${count(to - from)} instructions`, this.host.axis() === "time" ? `, about ${time(Math.round(end - begin), this.recording.ticks)}` : "",
    );
    this.#tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - 320)}px`;
    this.#tip.style.top = `${event.clientY + 14}px`;
  }
}
