// The chart of the usage page: stacked bars over time, drawn by uPlot in the page's own colours.
import uPlot from "uplot";

let holder = null;
const HEIGHT = 272;
const SPAN = { day: 86400, hour: 3600 };
const STEPS = { day: [1, 2, 3, 7, 14, 30], hour: [1, 3, 6, 12, 24, 72, 168] };
let chart = null;

/** A token's colour as canvas understands it: light-dark() is resolved by the browser on a real property. */
function paint(name) {
  const probe = document.createElement("i");
  holder.append(probe);
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** The largest groups have hues of their own; the others, which come last, are grey. */
function hue(data, index) {
  return index === data.series.length - 1 && index === 8 ? "others" : String(index + 1);
}

function draw(data) {
  const span = SPAN[data.bucket];
  const times = data.times.map((time) => Date.parse(data.bucket === "day" ? `${time}T00:00:00Z` : time) / 1000);
  // Each series is drawn from zero to the sum of those below and itself; the tallest is drawn first.
  const sums = data.series.map((_, index) => times.map((_, at) => data.series.slice(0, index + 1).reduce((sum, part) => sum + (part.values[at] ?? 0), 0)));
  const write = writer(data);
  const bars = uPlot.paths.bars({ size: [0.62, 44], radius: times.length > 60 ? 0 : 0.18 });
  const axis = { stroke: paint("--muted"), font: `12px Geist, sans-serif`, ticks: { show: false } };
  const series = data.series.map((part, index) => {
    const colour = paint(`--chart-${hue(data, index)}`);
    return { label: part.name, fill: colour, stroke: colour, width: 0, paths: bars, points: { show: false } };
  });
  chart?.destroy();
  chart = new uPlot(
    {
      width: holder.clientWidth,
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      padding: [8, 8, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      legend: { show: false },
      scales: {
        x: { range: (_, low, high) => [low - span / 2, high + span / 2] },
        y: { range: (_, low, high) => [0, (high || 1) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 64, gap: 8, values: data.bucket === "day" ? "{D} {MMM}" : "{D} {MMM} {HH}:00", incrs: STEPS[data.bucket].map((n) => n * span) },
        { ...axis, grid: { stroke: paint("--line"), width: 1 }, size: 64, values: (_, ticks) => ticks.map(write) },
      ],
      series: [{}, ...series.reverse()],
      hooks: { setCursor: [(plot) => tip(plot, data, write)] },
    },
    [times, ...sums.reverse()],
    holder,
  );
  holder.dataset.drawn = data.measure;
}

function writer(data) {
  const money = new Intl.NumberFormat(undefined, { style: "currency", currency: data.currency, maximumSignificantDigits: 3 });
  const count = new Intl.NumberFormat(undefined, { notation: "compact" });
  return (number) => (data.measure === "price" ? money : count).format(number);
}

function tip(plot, data, write) {
  let box = holder.querySelector(".chart-tip");
  const at = plot.cursor.idx;
  if (at == null || plot.cursor.left < 0) return box?.remove();
  if (!box) {
    box = document.createElement("div");
    box.className = "chart-tip";
    holder.append(box);
  }
  const head = document.createElement("strong");
  head.textContent = data.bucket === "day" ? data.times[at] : data.times[at].replace("T", " ").replace("Z", " UTC");
  const lines = data.series.flatMap((part, index) => {
    if (part.values[at] === 0) return [];
    const [line, label, number, swatch] = ["div", "span", "span", "i"].map((tag) => document.createElement(tag));
    swatch.className = `swatch swatch-${hue(data, index)}`;
    label.append(swatch, part.name.length > 40 ? `${part.name.slice(0, 39)}…` : part.name);
    number.textContent = part.values[at] === null ? data.unpriced : write(part.values[at]);
    line.append(label, number);
    return [line];
  });
  box.replaceChildren(head, ...lines);
  const x = plot.cursor.left + plot.bbox.left / devicePixelRatio;
  const left = x + box.offsetWidth + 20 > holder.clientWidth ? x - box.offsetWidth - 12 : x + 12;
  box.style.transform = `translate(${Math.max(0, left)}px, 8px)`;
  return undefined;
}

const resized = new ResizeObserver(() => chart?.setSize({ width: holder.clientWidth, height: HEIGHT }));

/** Draws the page's chart, and again after a filter has replaced the page's content. */
function start() {
  const found = document.getElementById("usage-chart");
  if (!found || found === holder) return;
  holder = found;
  resized.disconnect();
  redraw();
  resized.observe(holder);
}

function redraw() {
  if (holder?.isConnected) draw(JSON.parse(holder.dataset.chart));
}

start();
document.addEventListener("htmx:afterSettle", start);
document.addEventListener("themechange", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
