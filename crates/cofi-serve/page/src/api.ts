// The server's questions and answers: docs/serve.md lists them.

export type Axis = "time" | "insns" | "offset";

export interface Row {
  pid: number;
  tid: number;
  cpu: number | null;
  comm: string | null;
  insns: number;
  bytes: number;
  calls: number;
  begin: number | null;
  end: number | null;
  gaps: number;
}

export interface Recording {
  name: string;
  state: "building" | "ready" | "failed";
  done?: number;
  error?: string;
  note?: string | null;
  rows?: Row[];
  end?: number;
  ticks?: boolean;
}

/** Name, file, flags (1 named, 2 inlined), instructions, calls. */
export type FunctionRow = [string, string | null, number, number, number];
export type Source = [string, number | null] | null;
/** Function, own instructions, total instructions, calls. */
export type Sum = [number, number, number, number];
/** Begin and end on the axis, depth, function, flags (1 assumed, 2 inlined, 4 end not known), begin and end as places. */
export type Call = [number, number, number, number, number, number, number];
/** `events`: index of a bin, and the bits of the kinds of what happened there. */
export interface Strip { row: number; insns: number[]; functions: number[]; gaps: number[]; events: [number, number][] }
/** What ran in all rows together, by bin, and the bins in which trace is missing. */
export interface Ran { insns: number[]; gaps: number[] }
export const SIGNAL = 1 << 2;
export const CODE = 1 << 9;
export interface Frame { function: number | null; kind: string; depth: number; begin: number; ip: string | null; source: Source }
export interface Place {
  row: number; at: number; of: number; offset: number; time: [number, number] | null; tid: number; ip: string;
  function: number | null; source: Source; stack: Frame[];
}
export interface Event { row?: number; value?: number | null; at: number; offset: number; time: number | null; kind: string; text: string }
export interface Insn { at: number; ip: string; bytes: string; text: string; function: number | null; depth: number; source: Source; events: Event[] }
export type CodeInsn = [string, string, string, number, [number, number] | null, Source];
export type Hit = { kind: "function"; function: number } | { kind: "ip"; ip: string } | { kind: "line"; file: string; line: number };
export interface Turn { at: number; skipped: number; function: string | null; entered: string[] }
export interface Parting {
  rows: [number | null, number | null]; same: boolean; count?: number; places: { why: string; turns: [Turn, Turn] }[];
}

export type Params = Record<string, string | number | null | undefined>;

/** Asks the server. An answer that is an error is thrown. */
export async function ask<T>(question: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== undefined && value !== null) query.set(key, String(value));
  }
  const answer = await fetch(`api/${question}?${query}`, signal ? { signal } : {});
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? `${answer.status}`);
  return value as T;
}

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";
