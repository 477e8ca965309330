// One picture and its dials: asks the server again whenever one of them changes, and shows what it says.

import { Pad, difference, fromFile, paint } from "./pad.js";
import { setUpNumbers } from "./numbers.js";
import { setUpPlanner } from "./planner.js";
import { element, long, makeBars, makeMaps, median, megabytes, percent, short, showVotes } from "./views.js";

const TIMES = 12; // a difference is shown this much stronger
const PAUSE = 25; // milliseconds between two questions while a dial is moving
const DIGITS = "0123456789";

const at = (id) => document.getElementById(id);
const state = { model: null, picture: null, busy: false, again: false, times: new Map() };

start().catch((error) => trouble(`The page cannot start: ${error.message}`));

async function start() {
  state.model = await get("api/model");
  const { model } = state;
  describe(model);
  setUpDials(model);
  state.bars = makeBars(at("bars"), model.classes);
  state.mark = makeMaps(at("maps"), at("grid-note"), model, setDials);
  at("attack").addEventListener("change", ask);
  setUpPlanner(at("plan"), at("found"), { send, setDials, dual: model.dual, attacked: model.table.rows.some((row) => row.attacked != null) });
  if (model.sample === "image") await takePictures(model);
  else takeNumbers(model);
}

async function takePictures(model) {
  state.pad = new Pad(at("pad"), model.image, (picture) => (picture ? show(picture, true) : wait()));
  at("clear").addEventListener("click", () => state.pad.clear());
  at("file").addEventListener("change", openFile);
  const digits = model.classes.join("") === DIGITS && model.image.join() === "28,28,3";
  state.wish = digits ? "Draw a digit" : "Draw a picture, or open a file";
  at("hint").textContent = digits ? "Draw a digit here" : "Draw here, or open a file";
  const { rows } = await get("api/examples");
  if (rows.length) await offerExamples(rows);
  else state.pad.clear();
}

function takeNumbers(model) {
  document.querySelector(".picture").hidden = at("views").hidden = document.querySelector(".switch").hidden = true;
  at("numbers-card").hidden = false;
  at("forgotten").textContent = "Numbers are classified in memory and forgotten: none are kept or logged.";
  state.wish = "Paste numbers, or open a CSV file";
  setUpNumbers(at, model, { changed: (sample) => (sample ? show(sample, true) : wait()), trouble });
  wait();
}

function describe(model) {
  at("name").textContent = `· ${model.name}`;
  document.title = `splitmix: ${model.name}`;
  const facts = [
    [model.bases, `bases of width ${model.atom}`],
    [model.classes.length, "classes"],
    [model.net, "net"],
    [model.storage, "weights"],
    [model.task, "task"],
  ];
  const shown = facts.filter(([value]) => value);
  at("facts").replaceChildren(...shown.map(([value, what]) => element("li", {}, element("b", { text: value }), ` ${what}`)));
  at("attack-name").textContent = model.attack ?? "";
  at("attack").disabled = !model.attack;
  if (!model.attack) for (const id of ["attack", "attacked", "difference"]) at(id).parentElement.hidden = true;
}

// --- the dials

function setUpDials(model) {
  const [width, robust] = [at("width"), at("robust")];
  width.max = model.widths.length;
  width.value = model.widths.length;
  width.disabled = model.widths.length < 2;
  const missing = model.bases - model.widths.length;
  if (missing) explain(at("width-help"), `${missing} of ${model.bases} bases have not arrived yet.`);
  ticks(at("width-ticks"), model.widths.map((text, i) => [i / Math.max(1, model.widths.length - 1), text]));
  ticks(at("robust-ticks"), [0, 0.25, 0.5, 0.75, 1].map((value) => [value, `${value}`]));
  if (!model.dual) {
    robust.disabled = true;
    at("heading").textContent = "One model, one dial: how wide";
    at("dials-heading").textContent = "Dial";
    for (const id of ["robust", "robust-name", "robust-ticks"]) at(id).hidden = true;
    explain(at("robust-help"), "This model was not trained for robustness.");
  }
  for (const dial of [width, robust]) dial.addEventListener("input", ask);
  showDials();
}

/** Why a dial cannot be turned further; this is also said where there is little room. */
function explain(help, why) {
  help.textContent = why;
  help.className = "why";
}

function ticks(root, places) {
  places.forEach(([share, text], i) => {
    const major = [0, Math.floor((places.length - 1) / 2), places.length - 1].includes(i); // what a phone has room for
    const mark = element("span", { text, className: major ? "major" : "" });
    mark.style.left = `${100 * share}%`;
    root.append(mark);
  });
}

const dials = () => ({ width: state.model.widths[at("width").value - 1], robust: Number(at("robust").value) });

function setDials(width, robust) {
  const place = state.model.widths.indexOf(width);
  if (place >= 0) at("width").value = place + 1;
  if (!at("robust").disabled) at("robust").value = robust;
  ask();
}

function showDials() {
  const { width, robust } = dials();
  const cost = state.model.costs.find((row) => row.width === width);
  at("width-value").textContent = width;
  at("robust-value").textContent = robust.toFixed(2);
  at("width").setAttribute("aria-valuetext", `${width}, ${cost.bases} bases`);
  at("parameters").textContent = short(cost.parameters);
  at("macs").textContent = short(cost.macs);
  at("bytes").textContent = megabytes(cost.bytes);
  const times = state.times.get(width);
  at("latency").textContent = times ? `${median(times).toFixed(2)} ms` : "–";
  state.mark?.(width, robust);
}

// --- the picture

/** Nothing is drawn: ask for something instead of answering. */
function wait() {
  state.picture = null;
  uncheckExamples();
  at("hint").hidden = false;
  at("given").width = 28; // wipes it
  at("answer").classList.add("waiting");
  at("says-attacked").hidden = true;
  says(at("says"), "?", state.wish);
  document.body.dataset.answers ??= 0;
}

function uncheckExamples() {
  document.querySelectorAll(".row input:checked").forEach((box) => (box.checked = false));
}

function show(picture, drawn = false) {
  state.picture = picture;
  if (picture.numbers) return ask();
  at("hint").hidden = !drawn || state.pad.strokes.length > 0;
  if (!drawn) state.pad.show(picture);
  if (picture.source !== "example") uncheckExamples();
  paint(at("given"), picture);
  ask();
}

async function openFile() {
  const [file] = at("file").files;
  at("file").value = "";
  if (!file) return;
  try {
    show(await fromFile(file, state.model.image));
  } catch {
    trouble(`'${file.name}' cannot be read as a picture.`);
  }
}

/** The pictures that came with the bundle, a row for each domain; the first of the last row is shown. */
async function offerExamples(rows) {
  for (const { name, pictures } of rows) {
    const line = element("div", { className: "row" }, element("span", { text: name }));
    for (const { label, png } of pictures) {
      const picture = await fromPng(png, { label, source: "example" });
      const [box, thumb] = [element("input", { type: "radio", name: "example", ariaLabel: `${name} ${label}` }), element("canvas")];
      paint(thumb, picture);
      box.addEventListener("change", () => show(picture));
      line.append(element("label", { title: label }, box, thumb));
      if (line.childElementCount === 2) state.first = [box, picture];
    }
    at("example-rows").append(line);
  }
  at("examples").hidden = false;
  state.first[0].checked = true;
  show(state.first[1]);
}

/** A picture that the server sent as PNG in base64. */
function fromPng(text, about) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return fromFile(new Blob([bytes], { type: "image/png" }), state.model.image, about);
}

// --- asking and showing

/** Ask about the picture as things stand; while an answer is under way, the last wish waits and the others are dropped. */
async function ask() {
  showDials();
  if (!state.picture) return;
  if (state.busy) {
    state.again = true;
    return;
  }
  state.busy = document.body.dataset.busy = true;
  do {
    state.again = false;
    const began = performance.now();
    await askOnce().catch((error) => trouble(error.message));
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, PAUSE - (performance.now() - began))));
  } while (state.again);
  state.busy = document.body.dataset.busy = false;
}

async function askOnce() {
  const picture = state.picture;
  if (!picture) return;
  const answer = await send("api/predict", {
    ...dials(),
    ...(picture.numbers ? { numbers: picture.numbers } : { pixels: nested(picture, state.model.image[2]) }),
    attack: at("attack").checked,
    label: picture.label,
  });
  trouble("");
  remember(answer);
  if (state.picture) await showAnswer(answer, picture); // it may have been wiped meanwhile
  document.body.dataset.answers = Number(document.body.dataset.answers ?? 0) + 1;
}

function remember(answer) {
  const times = state.times.get(answer.width) ?? [];
  state.times.set(answer.width, [...times, answer.milliseconds].slice(-9));
  showDials();
}

async function showAnswer(answer, picture) {
  at("answer").classList.remove("waiting");
  const best = Math.max(...answer.probabilities);
  const truth = picture.label === null ? "" : answer.label === picture.label ? ", which is right" : `, but it is ${picture.label}`;
  says(at("says"), answer.label, `with ${percent(best)}${truth}`);
  const hit = answer.attacked;
  at("says-attacked").hidden = !hit;
  at("says-attacked").classList.toggle("fooled", Boolean(hit?.fooled));
  at("says-attacked").classList.toggle("wrong", Boolean(hit) && answer.label !== hit.target);
  if (hit) {
    const verdict = hit.fooled ? "fooled" : answer.label === hit.target ? "it holds" : "it was wrong before";
    says(at("says-attacked"), hit.label, `under attack: ${verdict}, with ${percent(Math.max(...hit.probabilities))}`);
  }
  state.bars(answer);
  showVotes(at("votes"), at("ballot"), state.model.bases, answer);
  await showAttack(hit, picture);
}

function says(line, label, rest) {
  line.firstElementChild.textContent = label;
  line.firstElementChild.className = long(label);
  line.lastElementChild.textContent = rest;
}

async function showAttack(hit, picture) {
  for (const id of ["attacked", "difference"]) at(id).parentElement.classList.toggle("empty", !hit);
  if (!hit) {
    for (const id of ["attacked", "difference"]) at(id).width = 28; // wipes it
    return;
  }
  const made = await fromPng(hit.picture);
  paint(at("attacked"), made);
  paint(at("difference"), difference(picture, made, TIMES));
}

/** Rows of pixels, each a list of its channels. */
function nested({ height, width, data }, channels) {
  return Array.from({ length: height }, (_, y) =>
    Array.from({ length: width }, (_, x) => Array.from(data.slice(3 * (y * width + x), 3 * (y * width + x) + channels))));
}

// --- talking to the server

async function get(path) {
  return answered(await fetch(path).catch(lost));
}

async function send(path, body) {
  const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return answered(await fetch(path, request).catch(lost));
}

async function answered(response) {
  const said = await response.json();
  if (!response.ok) throw new Error(said.error ?? `The server answered ${response.status}.`);
  return said;
}

function lost() {
  throw new Error("The server does not answer; is it still running?");
}

function trouble(sentence) {
  at("trouble").hidden = !sentence;
  at("trouble").textContent = sentence;
}
