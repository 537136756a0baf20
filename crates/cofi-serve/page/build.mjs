// Builds what the binary holds: dist/. The output depends on the sources and the pinned esbuild alone.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";

await mkdir("dist", { recursive: true });
await build({
    entryPoints: ["src/main.ts"],
    outfile: "dist/app.js",
    bundle: true,
    minify: true,
    target: "es2022",
    format: "esm",
    legalComments: "none",
    charset: "utf8",
});
for (const name of ["index.html", "style.css", "icon.svg"]) {
    await copyFile(`src/${name}`, `dist/${name}`);
}
