// The form that explains one lookup. What was typed is sent in a body, never in a URL.

import {postJson} from "./api.js";
import {milliseconds} from "./format.js";
import {node} from "./panels.js";

const RESULTS = {
  found: "The user was found.",
  not_found: "There is no such user.",
  undetermined: "It could not be determined whether the user exists.",
};
const CACHE = {
  found: "The answer “found” is cached.",
  not_found: "The answer “not found” is cached.",
  stale: "An expired answer is cached, to be served only if the lookup fails.",
  failure: "A failure is cached for a moment.",
  absent: "Nothing is cached.",
};

export function listen(form, input, output) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    const body = /^[0-9]+$/.test(text) ? {card_number: text} : {input: text};
    try {
      const {ok, record} = await postJson("explain", body);
      output.replaceChildren(...(ok ? explanation(record) : mistake(record, text, form, input)));
    } catch {
      output.replaceChildren(node("p", "The service did not respond.", "problem"));
    }
  });
}

// Return the message, and a button that adds the @ that may be missing.
function mistake(record, text, form, input) {
  const problem = node("p", record.message, "problem");
  if (/^[@0-9]|:\/\//.test(text)) return [problem];
  const button = node("button", `Explain @${text}`);
  button.addEventListener("click", () => { input.value = `@${text}`; form.requestSubmit(); });
  return [problem, button];
}

function explanation(record) {
  const list = node("ol", "");
  for (const {backend, outcome, ms} of record.backends) {
    const item = node("li", node("span", backend, "name"));
    item.append(" ", node("span", outcome, "outcome"), " ", node("span", milliseconds(ms).join(" "), "number"));
    list.append(item);
  }
  return [node("p", `${RESULTS[record.result]} ${CACHE[record.cache]}`), list];
}
