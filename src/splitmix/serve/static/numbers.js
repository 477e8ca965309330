// Numbers in place of a picture: pasted, or read from a CSV file, a line for each sample.

const MOST = 1000; // lines that are looked at

/** Lines of numbers as rows; a line without any number is a heading. Throws what is wrong with the first bad one. */
export function parseRows(text, count) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean).slice(0, MOST);
  const rows = [];
  lines.forEach((line, place) => {
    const cells = line.split(/[,;\t ]+/).filter(Boolean);
    const numbers = cells.map(Number);
    if (place === 0 && numbers.every(Number.isNaN)) return;
    if (!numbers.every(Number.isFinite)) throw new Error(`Line ${place + 1}: "${cells[numbers.findIndex((n) => !Number.isFinite(n))]}" is no number.`);
    if (numbers.length !== count) throw new Error(`Line ${place + 1} has ${numbers.length} numbers; the model takes ${count}.`);
    rows.push(numbers);
  });
  return rows;
}

/** A flat row as nested lists of a shape. */
export function shaped(row, [, ...inner]) {
  if (!inner.length) return row;
  const size = inner.reduce((a, b) => a * b);
  return Array.from({ length: row.length / size }, (_, i) => shaped(row.slice(i * size, (i + 1) * size), inner));
}

/** Listens to the text, the file and the choice of a row; `changed` gets a sample, or null where there is none. */
export function setUpNumbers(at, { image: shape, columns }, { changed, trouble }) {
  const count = shape.reduce((a, b) => a * b);
  const order = columns.length ? `: ${columns.join(", ")}` : shape.length > 1 ? ` (${shape.join(" × ")}, row by row)` : "";
  at("numbers-help").textContent = `${count} numbers a line, with commas between them${order}.`;
  let rows = [];
  const choose = () => changed(rows.length ? { numbers: shaped(rows[at("row").value], shape), label: null, source: "numbers" } : null);
  const read = () => {
    try {
      rows = parseRows(at("numbers").value, count);
      trouble("");
    } catch (error) {
      rows = [];
      trouble(error.message);
    }
    at("row").replaceChildren(...rows.map((_, i) => new Option(`${i + 1} of ${rows.length}`, i)));
    at("which").hidden = rows.length < 2;
    choose();
  };
  at("numbers").addEventListener("input", read);
  at("row").addEventListener("change", choose);
  at("table").addEventListener("change", async () => {
    const [file] = at("table").files;
    at("table").value = "";
    if (!file) return;
    at("numbers").value = (await file.text()).slice(0, 1_000_000);
    read();
  });
}
