// What the page shows: bars, votes, costs and the accuracy of every dial.

const NARROW = 1e-9;
const MOST = 10; // bars

export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}\u00a0%`;

/** A number in few letters: 224,498 is 224 k. */
export function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value}`;
}

export const megabytes = (bytes) => `${(bytes / 1e6).toPrecision(3)} MB`;

export function element(tag, { text, ...rest } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), rest);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** A row for each class, or for the likeliest where there are many; returns a function that fills them. */
export function makeBars(root, classes) {
  const many = classes.length > MOST;
  const rows = classes.slice(0, MOST).map(() => {
    const [name, number] = [element("span", { className: "name" }), element("span", { className: "number" })];
    const [given, hit] = [element("i"), element("i", { className: "hit", hidden: true })];
    const row = element("div", { className: "bar" }, name, element("span", { className: "track" }, given, hit), number);
    root.append(row);
    return { row, name, given, hit, number };
  });
  root.style.setProperty("--name", `${Math.min(14, Math.max(...classes.map((name) => name.length)))}ch`);
  return (answer) => {
    const shown = answer.attacked ?? answer;
    const order = classes.map((_, i) => i);
    const likeliest = [...order].sort((a, b) => shown.probabilities[b] - shown.probabilities[a]);
    const listed = (many ? likeliest : order).slice(0, MOST);
    listed.forEach((place, i) => {
      const { row, name, given, hit, number } = rows[i];
      name.textContent = classes[place];
      given.style.width = `${100 * answer.probabilities[place]}%`;
      hit.hidden = !answer.attacked;
      if (answer.attacked) hit.style.width = `${100 * answer.attacked.probabilities[place]}%`;
      number.textContent = percent(shown.probabilities[place]);
      number.classList.toggle("hit", Boolean(answer.attacked?.fooled));
      row.classList.toggle("top", place === likeliest[0]);
    });
    root.setAttribute("aria-label", `Probability of each class${answer.attacked ? " under attack" : ""}: ` +
      listed.map((place) => `${classes[place]} ${percent(shown.probabilities[place])}`).join(", "));
  };
}

/** The class of a word that needs smaller letters. */
export const long = (label) => (label.length > 3 ? "long" : "");

/** A tile for each base; those beyond the width are off. */
export function showVotes(root, note, bases, answer) {
  const tiles = Array.from({ length: bases }, (_, i) => {
    const [vote, hit] = [answer.votes[i], answer.attacked?.votes[i]];
    if (!vote) return element("li", { className: "off" }, element("small", { text: `base ${i + 1}` }), element("b", { text: "·" }), element("small", { text: "off" }));
    const tile = element("li", {}, element("small", { text: `base ${i + 1}` }), element("b", { text: vote.label, className: long(vote.label) }));
    if (hit) {
      const { target } = answer.attacked;
      const kept = hit.label === target ? "held" : vote.label === target ? "hit" : ""; // who was wrong cannot be fooled
      tile.append(" → ", element("b", { text: hit.label, className: `${kept} ${long(hit.label)}` }));
    }
    tile.append(element("small", { text: percent((hit ?? vote).probability, 0) }));
    return tile;
  });
  root.replaceChildren(...tiles);
  const shown = answer.attacked ?? answer;
  const agreeing = shown.votes.filter((vote) => vote.label === shown.label).length;
  note.textContent = `${agreeing} of ${shown.votes.length} say ${shown.label}${answer.attacked ? " under attack" : ""}`;
}

/** The heat maps: a row for each width, a column for each robustness; returns a function that marks a dial. */
export function makeMaps(root, note, { table, dual, sample }, pick) {
  if (!table?.rows?.length) {
    note.textContent = "This bundle carries no measured table; see `splitmix eval --help` for how to measure one.";
    return () => {};
  }
  const rows = table.rows;
  const maps = [["clean", "Clean accuracy, %"]];
  if (rows.some((row) => row.attacked !== null && row.attacked !== undefined)) maps.push(["attacked", "Accuracy under attack, %"]);
  const cells = maps.flatMap(([key, title]) => heatMap(root, rows, key, title, dual, pick));
  note.textContent = [
    table.samples ? `Measured on ${table.samples.toLocaleString("en")} test ${sample === "image" ? "pictures" : "samples"} of ${table.clients} clients.` : "",
    table.attack ? `Attack: ${table.attack}, made anew against every dial.` : "",
    dual ? "Click a cell to set both dials." : "Click a cell to set the dial.",
  ].join(" ");
  return (width, robust) => {
    const near = nearest([...new Set(rows.map((row) => row.robust))], robust);
    for (const { cell, row } of cells) {
      const here = row.width === width && Math.abs(row.robust - near) < NARROW;
      cell.classList.toggle("here", here);
      if (here) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    }
  };
}

function heatMap(root, rows, key, title, dual, pick) {
  const widths = [...new Set(rows.map((row) => row.width))].sort((a, b) => number(b) - number(a));
  const robusts = [...new Set(rows.map((row) => row.robust))].sort((a, b) => a - b);
  const values = rows.map((row) => row[key]).filter((value) => value !== null && value !== undefined);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const cells = [];
  const head = element("tr", {}, element("th", { text: "width", scope: "col" }), ...robusts.map((robust) => element("th", { text: dual ? `${robust}` : "%", scope: "col" })));
  const body = widths.map((width) => {
    const line = element("tr", {}, element("th", { text: width, scope: "row" }));
    for (const robust of robusts) {
      const row = rows.find((each) => each.width === width && each.robust === robust);
      const cell = element("td");
      if (row && row[key] !== null && row[key] !== undefined) {
        const level = high - low < NARROW ? 1 : (row[key] - low) / (high - low);
        cell.textContent = (100 * row[key]).toFixed(0);
        cell.title = `width ${width}${dual ? `, robustness ${robust}` : ""}: ${percent(row[key])}, at least ${percent(row[`${key}_low`] ?? row[key])}`;
        cell.style.setProperty("--level", level.toFixed(3));
        cell.classList.toggle("half", level > 0.55); // whichever colour of text can be read there
        cell.classList.toggle("deep", level > 0.85);
        cell.addEventListener("click", () => pick(width, robust));
        cells.push({ cell, row });
      }
      line.append(cell);
    }
    return line;
  });
  const table = element("table", { className: key === "attacked" ? "robust" : "" }, element("caption", { text: title }), element("thead", {}, head), element("tbody", {}, ...body));
  root.append(element("div", { className: "card" }, table, element("div", { className: "axis", text: dual ? "robustness →" : "" })));
  return cells;
}

/** A width such as "3/8" as a number. */
export function number(width) {
  const [top, bottom = 1] = width.split("/").map(Number);
  return top / bottom;
}

export const nearest = (values, wanted) => values.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}
