// What pictures are painted with: a canvas, or SVG to be saved.

export interface Painter {
  readonly width: number;
  readonly height: number;
  rect(x: number, y: number, w: number, h: number, fill: string): void;
  /** Stripes over a rectangle: what it shows is assumed. */
  hatch(x: number, y: number, w: number, h: number, colour: string): void;
  text(x: number, y: number, text: string, fill: string, room: number): void;
}

const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";
const LETTER = 6.2;

/** As much of a text as there is room for. */
function fitted(text: string, room: number): string {
  const most = Math.floor(room / LETTER);
  if (text.length <= most) return text;
  return most < 4 ? "" : `${text.slice(0, most - 1)}…`;
}

export class CanvasPainter implements Painter {
  readonly width: number;
  readonly height: number;
  readonly #context: CanvasRenderingContext2D;

  /** For a canvas as large as it is shown, in the pixels of the screen. */
  constructor(canvas: HTMLCanvasElement, back: string) {
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    if (!context) throw new Error("no canvas");
    this.#context = context;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = back;
    context.fillRect(0, 0, this.width, this.height);
  }

  rect(x: number, y: number, w: number, h: number, fill: string): void {
    this.#context.fillStyle = fill;
    this.#context.fillRect(x, y, w, h);
  }

  hatch(x: number, y: number, w: number, h: number, colour: string): void {
    const c = this.#context;
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    c.strokeStyle = colour;
    c.lineWidth = 1;
    c.beginPath();
    const first = Math.max(x, 0) - (Math.max(x, 0) % 6) - h;
    for (let at = first; at < Math.min(x + w, this.width); at += 6) {
      c.moveTo(at, y + h);
      c.lineTo(at + h, y);
    }
    c.stroke();
    c.restore();
  }

  text(x: number, y: number, text: string, fill: string, room: number): void {
    const shown = fitted(text, room);
    if (!shown) return;
    this.#context.fillStyle = fill;
    this.#context.fillText(shown, x, y);
  }
}

const escaped = (text: string): string => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd");
const short = (value: number): string => String(Math.round(value * 100) / 100);

export class SvgPainter implements Painter {
  readonly #parts: string[] = [];
  constructor(readonly width: number, readonly height: number, readonly top: number) {}

  rect(x: number, y: number, w: number, h: number, fill: string): void {
    this.#parts.push(`<rect x="${short(x)}" y="${short(y + this.top)}" width="${short(w)}" height="${short(h)}" fill="${fill}"/>`);
  }

  hatch(x: number, y: number, w: number, h: number, colour: string): void {
    const from = Math.max(x, 0);
    const to = Math.min(x + w, this.width);
    const lines: string[] = [];
    for (let at = from; at + h / 2 < to && lines.length < 2000; at += 6) {
      lines.push(`M${short(at)} ${short(y + h + this.top)}l${short(Math.min(h, to - at))} ${short(-h)}`);
    }
    if (lines.length) this.#parts.push(`<path d="${lines.join("")}" stroke="${colour}" fill="none"/>`);
  }

  text(x: number, y: number, text: string, fill: string, room: number): void {
    const shown = fitted(text, room);
    if (shown) this.#parts.push(`<text x="${short(x)}" y="${short(y + this.top)}" fill="${fill}">${escaped(shown)}</text>`);
  }

  body(): string {
    return this.#parts.join("\n");
  }
}

/** SVG of pictures below each other. */
export function svg(painters: SvgPainter[], width: number, height: number, back: string): string {
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11" dominant-baseline="middle">`;
  const ground = `<rect width="${width}" height="${height}" fill="${back}"/>`;
  return [head, ground, ...painters.map((painter) => painter.body()), "</svg>", ""].join("\n");
}

export interface Colours {
  back: string; text: string; faint: string; line: string; accent: string; gap: string; cursor: string; select: string; label: string; panel: string;
  sat: string; light: string; inlined: string;
}

/** The colours of the theme. */
export function colours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "text", "faint", "line", "accent", "gap", "cursor", "select", "label", "panel", "sat", "light", "inlined"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as unknown as Colours;
}

const hues = new Map<string, number>();

/** The colour of a function: the same for a name, wherever it is. */
export function colourOf(name: string, c: Colours, inlined = false): string {
  let hue = hues.get(name);
  if (hue === undefined) {
    let hash = 2166136261;
    for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
    hue = (hash >>> 0) % 360;
    hues.set(name, hue);
  }
  return `hsl(${hue} ${c.sat} ${inlined ? c.inlined : c.light})`;
}
