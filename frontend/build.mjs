// Builds static/console from frontend/: one stylesheet, three scripts, one icon sprite, one font.
// The output is deterministic and committed, so that users of Graftwork need no Node.
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const OUT = join(ROOT, "static", "console");
const WATCH = process.argv.includes("--watch");
mkdirSync(OUT, { recursive: true });

/** Every icon that a template or script names, from Lucide (ISC), as <symbol id="name">. */
const ICONS = JSON.parse(readFileSync(join(ROOT, "frontend", "icons.json"), "utf8"));

function buildIcons() {
  const symbols = ICONS.map((name) => {
    const svg = readFileSync(join(ROOT, "node_modules", "lucide-static", "icons", `${name}.svg`), "utf8");
    const body = svg.slice(svg.indexOf(">", svg.indexOf("<svg")) + 1, svg.lastIndexOf("</svg>"));
    return `<symbol id="${name}" viewBox="0 0 24 24">${body.replace(/\s+/g, " ").trim()}</symbol>`;
  });
  writeFileSync(join(OUT, "icons.svg"), `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>\n`);
}

function buildStyles() {
  const args = ["--input", "frontend/css/app.css", "--output", "static/console/app.css", "--minify"];
  const cli = join(ROOT, "node_modules", "@tailwindcss", "cli", "dist", "index.mjs");
  const done = spawnSync(process.execPath, [cli, ...args], { cwd: ROOT, stdio: "inherit" });
  if (done.status !== 0) process.exit(done.status ?? 1);
}

function copyAssets() {
  const font = "node_modules/@fontsource-variable/geist";
  copyFileSync(join(ROOT, font, "files", "geist-latin-wght-normal.woff2"), join(OUT, "geist-latin.woff2"));
  copyFileSync(join(ROOT, font, "LICENSE"), join(OUT, "geist-LICENSE.txt"));
  copyFileSync(join(ROOT, "frontend", "icons", "favicon.svg"), join(OUT, "favicon.svg"));
}

/** A .gz beside each text file: the web server hands it out as it is, without compressing anything itself. */
function compress() {
  for (const name of readdirSync(OUT).filter((name) => /\.(css|js|svg)$/.test(name))) {
    writeFileSync(join(OUT, `${name}.gz`), gzipSync(readFileSync(join(OUT, name)), { level: 9 }));
  }
}

const scripts = {
  absWorkingDir: ROOT,
  entryPoints: ["app", "playground", "usage"].map((name) => `frontend/js/${name}.js`),
  outdir: OUT,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  legalComments: "eof",
  logLevel: "info",
};

buildIcons();
copyAssets();
buildStyles();
if (WATCH) {
  await (await esbuild.context(scripts)).watch();
  console.log("watching scripts; run `npm run build` again for styles and icons");
} else {
  await esbuild.build(scripts);
  compress();
}
