// The chart of the usage page: stacked bars by day, drawn by uPlot in the page's own colours.
import uPlot from "uplot";

const holder = document.getElementById("usage-chart");
const HEIGHT = 272;
const MEASURES = {
  tokens: [["cached", 3], ["input", 2], ["output", 1]],
  requests: [["requests", 1]],
  price: [["price", 1]],
};
let chart = null;
let measure = "tokens";

/** A token's colour as canvas understands it: light-dark() is resolved by the browser on a real property. */
function paint(name) {
  const probe = document.createElement("i");
  holder.append(probe);
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function draw(data) {
  const parts = MEASURES[measure];
  const days = data.days.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  // Each series is drawn from zero to the sum of those below and itself; the tallest is drawn first.
  const sums = parts.map((_, index) => data.days.map((_, day) => parts.slice(0, index + 1).reduce((sum, [key]) => sum + data[key][day], 0)));
  const money = new Intl.NumberFormat(undefined, { style: "currency", currency: data.currency, maximumSignificantDigits: 3 });
  const count = new Intl.NumberFormat(undefined, { notation: "compact" });
  const write = (number) => (measure === "price" ? money : count).format(number);
  const bars = uPlot.paths.bars({ size: [0.62, 44], radius: 0.18 });
  const axis = { stroke: paint("--muted"), font: `12px Geist, sans-serif`, ticks: { show: false } };
  const legend = document.querySelector("[data-legend]");
  legend.hidden = legend.dataset.legend !== measure;
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
        x: { range: (_, low, high) => [low - 43200, high + 43200] },
        y: { range: (_, low, high) => [0, (high || 1) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 64, gap: 8, values: "{D} {MMM}", incrs: [1, 2, 3, 7, 14, 30].map((n) => n * 86400) },
        { ...axis, grid: { stroke: paint("--line"), width: 1 }, size: 64, values: (_, ticks) => ticks.map(write) },
      ],
      series: [{}, ...parts.map(([key, hue]) => ({ label: key, fill: paint(`--chart-${hue}`), stroke: paint(`--chart-${hue}`), width: 0, paths: bars, points: { show: false } })).reverse()],
      hooks: { setCursor: [(plot) => tip(plot, data, parts, write)] },
    },
    [days, ...sums.reverse()],
    holder,
  );
  holder.dataset.drawn = measure;
}

function tip(plot, data, parts, write) {
  let box = holder.querySelector(".chart-tip");
  const day = plot.cursor.idx;
  if (day == null || plot.cursor.left < 0) return box?.remove();
  if (!box) {
    box = document.createElement("div");
    box.className = "chart-tip";
    holder.append(box);
  }
  const head = document.createElement("strong");
  head.textContent = new Date(`${data.days[day]}T00:00:00Z`).toLocaleDateString(undefined, { dateStyle: "medium", timeZone: "UTC" });
  const lines = [...parts].reverse().map(([key, hue]) => {
    const [line, label, number, swatch] = ["div", "span", "span", "i"].map((tag) => document.createElement(tag));
    swatch.className = `swatch swatch-${hue}`;
    label.append(swatch, holder.dataset[key]);
    number.textContent = measure === "price" ? write(data[key][day]) : data[key][day].toLocaleString();
    line.append(label, number);
    return line;
  });
  box.replaceChildren(head, ...lines);
  const x = plot.cursor.left + plot.bbox.left / devicePixelRatio;
  const left = x + box.offsetWidth + 20 > holder.clientWidth ? x - box.offsetWidth - 12 : x + 12;
  box.style.transform = `translate(${Math.max(0, left)}px, 8px)`;
  return undefined;
}

if (holder) {
  const data = JSON.parse(document.getElementById("usage-data").textContent);
  draw(data);
  new ResizeObserver(() => chart.setSize({ width: holder.clientWidth, height: HEIGHT })).observe(holder);
  for (const button of document.querySelectorAll("[data-measure]")) {
    button.addEventListener("click", () => {
      measure = button.dataset.measure;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      draw(data);
    });
  }
  document.addEventListener("themechange", () => draw(data));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(data));
}
