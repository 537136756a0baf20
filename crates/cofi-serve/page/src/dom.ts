// Elements. Text of a trace comes to the page as text alone, never as markup.

type Child = Node | string | null | undefined;
type Props = Record<string, string | number | boolean | ((event: never) => void)>;

export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (typeof value === "function") made.addEventListener(key, value as EventListener);
    else if (key === "class") made.className = String(value);
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else made.setAttribute(key, String(value));
  }
  for (const child of children) if (child != null) made.append(child);
  return made;
}

export function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`#${id} is not on the page`);
  return found as T;
}

export const link = (text: string, act: () => void, label?: string): HTMLButtonElement =>
  el("button", { class: "link", type: "button", click: act, ...(label ? { "aria-label": `${text} ${label}` } : {}) }, text);

/** A table; cells in columns marked `n` are numbers. */
export function table(heads: [string, string][], rows: (Child | Child[])[][], mark?: (index: number) => string): HTMLTableElement {
  const head = el("tr", {}, ...heads.map(([text, kind]) => (text ? el("th", { class: kind, scope: "col" }, text) : el("td"))));
  const body = el("tbody");
  rows.forEach((row, index) => {
    const line = el("tr", { class: mark?.(index) ?? "" });
    row.forEach((cell, column) => {
      const kind = heads[column]?.[1] ?? "";
      line.append(el("td", { class: kind }, ...(Array.isArray(cell) ? cell : [cell])));
    });
    body.append(line);
  });
  return el("table", {}, el("thead", {}, head), body);
}

export const count = (value: number): string => value.toLocaleString("en-US");

/** A time, or a number of TSC ticks where nothing tells how long one is. */
export function time(value: number, ticks = false): string {
  if (ticks) return `${count(value)} ticks`;
  const units: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  for (const [size, name] of units) {
    if (Math.abs(value) >= size) return `${(value / size).toLocaleString("en-US", { maximumFractionDigits: 6 })} ${name}`;
  }
  return `${count(value)} ns`;
}
