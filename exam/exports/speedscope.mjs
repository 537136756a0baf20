// Opens files with speedscope's own importer, as its page does, and prints what functions weigh in each: a line of JSON a file,
// {"file", "unit", "profiles": [names], "self": {function: weight}}.
//
// The npm package has no importer to call, only the page's script. This finds the importer in it and runs the script without a page: what would
// show something fails, and by then the importer is there.
//
// usage: node speedscope.mjs FOLDER-OF-THE-PACKAGE FILE...
import { readFileSync, readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import vm from 'node:vm'

const [folder, ...files] = process.argv.slice(2)
const release = join(folder, 'dist/release')
const script = readdirSync(release).find((name) => /^speedscope-\w+\.js$/.test(name))
const text = readFileSync(join(release, script), 'utf8')
const exported = /\w+\((\w+),\{[^}]*importProfilesFromArrayBuffer:/.exec(text)
const promised = new RegExp(`var (\\w+)=Promise\\.resolve\\(\\)\\.then\\(\\(\\)=>\\(\\w+\\(\\),${exported[1]}\\)\\);`).exec(text)
const at = promised.index + promised[0].length
const patched = `${text.slice(0, at)}globalThis.importer=${promised[1]};${text.slice(at)}`

const element = { style: {}, setAttribute() {}, appendChild() {}, sheet: { insertRule() {} } }
const page = {
    console: { log() {}, warn: console.warn, error: console.error },
    document: { createElement: () => element, head: element, body: element, querySelector: () => null },
    location: { hash: '', protocol: 'file:' },
    navigator: { userAgent: '', platform: '' },
    TextDecoder, TextEncoder, setTimeout, clearTimeout, atob, btoa, URL,
}
page.window = page.self = page
vm.createContext(page)
try {
    vm.runInContext(patched, page)
} catch (error) {
    if (!page.importer) throw error
}
const importer = await page.importer

for (const file of files) {
    const bytes = readFileSync(file)
    const buffer = vm.runInContext(`new ArrayBuffer(${bytes.length})`, page)
    new Uint8Array(buffer).set(bytes)
    const group = await importer.importProfilesFromArrayBuffer(basename(file), buffer)
    if (!group) throw new Error(`${file}: speedscope does not know what this is`)
    const self = {}
    const profiles = []
    let unit
    for (const profile of group.profiles) {
        profiles.push(profile.getName())
        unit = profile.getWeightUnit()
        profile.forEachFrame((frame) => {
            const weight = frame.getSelfWeight()
            if (weight > 0) self[frame.name] = (self[frame.name] ?? 0) + weight
        })
    }
    console.log(JSON.stringify({ file: basename(file), unit, profiles, self }))
}
