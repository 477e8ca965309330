// The planner: limits in, a dial out, with what it promises and which limit binds.

import { element, percent, short } from "./views.js";

const SCALES = { max_macs: 1e6, min_clean: 0.01, min_robust: 0.01 }; // the form speaks of millions and of percent

const NAMES = {
  max_ms: ["latency", "ms"],
  max_mb: ["memory", "MB"],
  max_macs: ["multiplications", "million"],
  min_clean: ["clean accuracy", "%"],
  min_robust: ["accuracy under attack", "%"],
};

/** Send the form's limits and show the dial that was found. */
export function setUpPlanner(form, found, { send, setDials, dual, attacked }) {
  form.elements.min_robust.closest("label").hidden = !attacked; // nothing is known of attacks
  form.elements.prefer.querySelector("[value=robust]").hidden = !attacked;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const limits = {};
    for (const [name, value] of new FormData(form)) {
      if (value !== "") limits[name] = name === "prefer" ? value : Number(value) * (SCALES[name] ?? 1);
    }
    found.replaceChildren(element("p", { className: "quiet", text: "Measuring …" }));
    try {
      show(found, await send("api/plan", limits), setDials, dual);
    } catch (error) {
      found.replaceChildren(element("p", { text: error.message }));
    }
  });
}

function show(found, plan, setDials, dual) {
  const { option } = plan;
  const use = element("button", { type: "button", text: "Use it" });
  use.addEventListener("click", () => setDials(option.width, option.robust));
  const promises = [
    `${option.ms.toFixed(2)} ms`,
    `${option.mb.toPrecision(3)} MB`,
    `${short(option.macs)} multiplications`,
    `clean at least ${percent(option.clean)}`,
    ...(option.attacked === null ? [] : [`under attack at least ${percent(option.attacked)}`]),
  ];
  found.replaceChildren(
    element("p", { className: plan.fits ? "quiet" : "why", text: verdict(plan) }),
    element("p", { className: "dial-found", text: `width ${option.width}${dual ? `, robustness ${option.robust}` : ""}` }),
    element("p", { text: promises.join(", ") }),
    use,
  );
}

/** Which limit decided; where none can be kept, what they would have to be. */
function verdict(plan) {
  const named = plan.binding.map((name) => NAMES[name][0]);
  if (plan.fits) return named.length ? `Best within the limits; what decides is ${named.join(" and ")}.` : "No limit stands in the way.";
  const wanted = Object.entries(plan.relax).map(([name, value]) => {
    const [what, unit] = NAMES[name];
    return `${what} ${Number((value / (SCALES[name] ?? 1)).toPrecision(3))} ${unit}`;
  });
  return `Nothing keeps to these limits. The nearest would need ${wanted.join(" and ")}.`;
}
