// `cofi dap` and a real client of the protocol: the one with which adapters of VS Code are tested. COFI names the command; else it is the release build.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const { DebugClient } = createRequire(import.meta.url)("@vscode/debugadapter-testsupport");
const here = dirname(fileURLToPath(import.meta.url));
const cofi = process.env.COFI ?? join(here, "../../../../target/release/cofi");
const folder = mkdtempSync(join(tmpdir(), "cofi-dap-"));
const source = join(folder, "calls.c");
const recording = join(folder, "data");
const SOURCE = `#include <stdio.h>
__attribute__((noinline)) int leaf(int x) {
    return x * 3;
}
__attribute__((noinline)) int middle(int x) {
    int one = leaf(x);
    int two = leaf(x + 1);
    return one + two;
}
int main(void) {
    int sum = 0;
    for (int i = 0; i < 5; i++)
        sum += middle(i);
    printf("%d\\n", sum);
    return 0;
}
`;
let client;

before(() => {
  writeFileSync(source, SOURCE);
  execFileSync("gcc", ["-g", "-O0", "-static", "-o", join(folder, "calls"), source]);
  execFileSync(cofi, ["record", "--engine", "ptrace", "-o", recording, "--", join(folder, "calls")], { stdio: "pipe" });
});

afterEach(() => client.stop());

after(() => rmSync(folder, { recursive: true, force: true }));

/** Starts a session, with what is set before it begins. */
async function begin(set = async () => {}, more = {}) {
  client = new DebugClient(cofi, "dap", "cofi");
  await client.start();
  const { body } = await client.initializeRequest();
  const initialized = client.waitForEvent("initialized");
  const stopped = client.waitForEvent("stopped");
  await Promise.all([client.launchRequest({ recording, ...more }), initialized]);
  await set();
  await client.configurationDoneRequest();
  return { capabilities: body, stopped: (await stopped).body };
}

/** Sends a request, and waits until the program stops. */
async function go(request, threadId = 1, more = {}) {
  const stopped = client.waitForEvent("stopped");
  await client.send(request, { threadId, ...more });
  return (await stopped).body;
}

async function frames(threadId = 1) {
  const { body } = await client.stackTraceRequest({ threadId });
  assert.equal(body.totalFrames, body.stackFrames.length);
  return body.stackFrames;
}

const top = async () => {
  const [frame] = await frames();
  return `${frame.name}:${frame.line}`;
};

test("steps, forward and back", async () => {
  const { capabilities, stopped } = await begin();
  assert.ok(capabilities.supportsStepBack);
  assert.equal(stopped.reason, "entry");
  const { body } = await client.threadsRequest();
  assert.match(body.threads[0].name, /^calls/);
  assert.equal(await top(), "main:10");
  await go("next");
  assert.equal(await top(), "main:11");
  await go("next");
  await go("next");
  assert.equal(await top(), "main:13");
  await go("stepIn");
  assert.equal(await top(), "middle:5");
  await go("next");
  assert.equal(await top(), "middle:6");
  await go("next");
  assert.equal(await top(), "middle:7");
  await go("stepBack");
  assert.equal(await top(), "middle:6");
  await go("stepIn");
  assert.equal(await top(), "leaf:2");
  const stack = await frames();
  assert.deepEqual(stack.slice(0, 3).map(({ name, line }) => [name, line]), [["leaf", 2], ["middle", 6], ["main", 13]]);
  assert.equal(stack[0].source.path, source);
  await go("stepOut");
  assert.equal(await top(), "middle:6");
  await go("stepOut");
  assert.equal(await top(), "main:13");
  // By instruction, over a call and back over it.
  const address = async () => (await frames())[0].instructionPointerReference;
  const before = await address();
  await go("next", 1, { granularity: "instruction" });
  assert.notEqual(await address(), before);
  await go("stepBack", 1, { granularity: "instruction" });
  assert.equal(await address(), before);
});

test("breakpoints on lines, functions and instructions, forward and back", async () => {
  let set;
  const { stopped } = await begin(async () => {
    set = await client.setBreakpointsRequest({ source: { path: source }, breakpoints: [{ line: 7 }, { line: 4000 }] });
    await client.setExceptionBreakpointsRequest({ filters: ["gaps"] });
  }, { stopOnEntry: false });
  assert.deepEqual(set.body.breakpoints.map(({ verified, line }) => [verified, line]), [[true, 7], [false, undefined]]);
  assert.deepEqual([stopped.reason, stopped.hitBreakpointIds], ["breakpoint", [set.body.breakpoints[0].id]]);
  assert.equal(await top(), "middle:7");
  for (let n = 1; n < 5; n++) {
    assert.equal((await go("continue")).reason, "breakpoint");
    assert.equal(await top(), "middle:7");
  }
  assert.match((await go("continue")).description, /the recording ends here/);
  for (let n = 0; n < 5; n++) {
    assert.equal((await go("reverseContinue")).reason, "breakpoint");
    assert.equal(await top(), "middle:7");
  }
  assert.match((await go("reverseContinue")).description, /the recording begins here/);

  await client.setBreakpointsRequest({ source: { path: source }, breakpoints: [] });
  const functions = await client.setFunctionBreakpointsRequest({ breakpoints: [{ name: "leaf" }, { name: "nobody" }] });
  assert.deepEqual(functions.body.breakpoints.map(({ verified }) => verified), [true, false]);
  assert.equal((await go("continue")).reason, "function breakpoint");
  assert.match(await top(), /^leaf:/);
  const [{ instructionPointerReference: at }] = await frames();
  await client.setFunctionBreakpointsRequest({ breakpoints: [] });
  await client.send("setInstructionBreakpoints", { breakpoints: [{ instructionReference: at }] });
  let count = 1;
  while ((await go("continue")).reason === "instruction breakpoint") count++;
  assert.equal(count, 10);
  await go("restart");
  // Again from the beginning, where it does not stop: on to the breakpoint.
  assert.equal(await top(), "leaf:2");
});

test("disassembly, and what a trace does not hold", async () => {
  await begin();
  const [frame] = await frames();
  const { body } = await client.send("disassemble", { memoryReference: frame.instructionPointerReference, instructionOffset: -2, instructionCount: 6 });
  assert.equal(body.instructions.length, 6);
  assert.equal(body.instructions[2].address, frame.instructionPointerReference);
  assert.equal(body.instructions[2].symbol, "main");
  assert.equal(body.instructions[2].instruction, "push rbp");
  assert.equal(body.instructions[0].presentationHint, "invalid");
  const scopes = await client.scopesRequest({ frameId: frame.id });
  const { variablesReference } = scopes.body.scopes[0];
  const variables = await client.variablesRequest({ variablesReference });
  const values = Object.fromEntries(variables.body.variables.map(({ name, value }) => [name, value]));
  assert.equal(values["registers, memory"], "not in a trace");
  assert.match(values.time, /ns$/);
  await assert.rejects(client.evaluateRequest({ expression: "sum" }), /registers and memory/);
  await assert.rejects(client.scopesRequest({ frameId: 999999999 }), /no such frame/);
  await assert.rejects(client.send("frobnicate"), /not known/);
});

test("a recording that is not there", async () => {
  client = new DebugClient(cofi, "dap", "cofi");
  await client.start();
  await client.initializeRequest();
  const ended = client.waitForEvent("terminated");
  await assert.rejects(client.launchRequest({ recording: join(folder, "nothing") }), /cannot read .*nothing/);
  await ended;
});
