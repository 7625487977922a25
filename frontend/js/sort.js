// Columns of `table[data-sortable]`, which has all rows of its list, sort by a click on their heads.
const ORDERS = { ascending: 1, descending: -1 };

/** A cell's value: a number if it starts like one, such as $1,234.50, else its text. */
function value(row, column) {
  const text = (row.cells[column]?.dataset.sort ?? row.cells[column]?.textContent ?? "").trim();
  const number = Number.parseFloat(text.replaceAll(/[,\s$€£]/g, ""));
  return /^[-−]?[$€£]?[\d.,]+(\s?[%a-z]+)?$/i.test(text) && !Number.isNaN(number) ? number : text.toLowerCase();
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1;
  return a.localeCompare(b, undefined, { numeric: true });
}

function sort(head) {
  const table = head.closest("table");
  const body = table.tBodies[0];
  const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  // A fixed row, such as the sum of others, stays below.
  const rows = [...body.rows].filter((row) => !row.hasAttribute("data-fixed"));
  const keyed = rows.map((row) => [value(row, head.cellIndex), row]);
  keyed.sort(([a], [b]) => ORDERS[order] * compare(a, b));
  body.prepend(...keyed.map(([, row]) => row));
}

/** Gives each head with a text a button, once. */
function prepare() {
  for (const head of document.querySelectorAll("table[data-sortable] thead th:not(:has(button))")) {
    if (head.querySelector(".sr-only")) continue;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head));
  }
}

prepare();
document.addEventListener("htmx:afterSettle", prepare);
