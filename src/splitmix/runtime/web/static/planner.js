// The planner: limits in, a dial out, with what it promises and which limit binds.

import { element, megabytes, percent, short } from "./views.js";

const SCALES = { max_macs: 1e6, min_clean: 0.01, min_robust: 0.01 }; // the form speaks of millions and of percent

/** Send the form's limits and show the dial that was found. */
export function setUpPlanner(form, found, { send, setDials }) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const limits = {};
    for (const [name, value] of new FormData(form)) {
      if (value !== "") limits[name] = name === "prefer" ? value : Number(value) * (SCALES[name] ?? 1);
    }
    found.replaceChildren(element("p", { className: "quiet", text: "Measuring …" }));
    try {
      show(found, await send("api/plan", limits), setDials);
    } catch (error) {
      found.replaceChildren(element("p", { text: error.message }));
    }
  });
}

function show(found, plan, setDials) {
  const { dial } = plan;
  const use = element("button", { type: "button", text: "Use it" });
  use.addEventListener("click", () => setDials(dial.width, dial.robust));
  const promises = [
    `${dial.milliseconds.toFixed(2)} ms`,
    megabytes(dial.bytes),
    `${short(dial.macs)} multiplications`,
    `clean from ${percent(dial.clean)}`,
    ...(dial.attacked === null ? [] : [`under attack from ${percent(dial.attacked)}`]),
  ];
  found.replaceChildren(
    element("p", { className: "dial-found", text: `${plan.fits ? "" : "Nearest: "}width ${dial.width}, robustness ${dial.robust}` }),
    element("p", { text: promises.join(", ") }),
    element("p", { className: "quiet", text: plan.sentence }),
    use,
  );
}
