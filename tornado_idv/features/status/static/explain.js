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

// `hint` has a button that puts the missing @ before a nickname.
export function listen(form, input, hint, output) {
  const button = hint.querySelector("button");
  input.addEventListener("input", () => {
    const text = input.value.trim();
    hint.hidden = !mayBeNickname(text);
    button.textContent = `Explain @${text}`;
  });
  button.addEventListener("click", () => {
    input.value = `@${input.value.trim()}`;
    hint.hidden = true;
    input.focus();
    form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    const body = /^[0-9]+$/.test(text) ? {card_number: text} : {input: text};
    try {
      const {ok, record} = await postJson("explain", body);
      output.replaceChildren(...(ok ? explanation(record) : [node("p", record.message, "problem")]));
    } catch {
      output.replaceChildren(node("p", "The service did not respond.", "problem"));
    }
  });
}

function mayBeNickname(text) {
  return /[^0-9]/.test(text) && !/[@/:\s]/.test(text);
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
