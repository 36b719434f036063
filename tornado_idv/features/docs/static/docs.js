// The page of /docs, made of openapi.json.

import {LANGUAGES} from "./examples.js";

const TIMEOUT_MS = 10000;
const RESPONSE_FIELDS = ["X-Request-ID", "X-Error-Reason", "Retry-After", "RateLimit-Policy", "WWW-Authenticate"];

const byId = (id) => document.getElementById(id);

// Return an element; `properties` are set on it, and those with a dash as attributes.
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.flat());
  return made;
}

// Return text as nodes: `code` and **strong**.
function prose(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`")) return element("code", {}, part.slice(1, -1));
    return part.startsWith("**") ? element("strong", {}, part.slice(2, -2)) : part;
  });
}

async function send(method, path, body) {
  const headers = {};
  const key = byId("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  return fetch(path, {method, headers, body, signal, cache: "no-store"});
}

function describeFailure(error) {
  return error.name === "TimeoutError" ? `No response within ${TIMEOUT_MS / 1000} s.` : `No response: ${error.message}`;
}

function showOperation(api, path, method, operation) {
  const resolve = (part) => (part.$ref ? part.$ref.split("/").slice(1).reduce((found, name) => found[name], api) : part);
  const id = operation.operationId;
  const media = operation.requestBody?.content["application/json"];
  const examples = Object.entries(media?.examples ?? {});
  const form = element("form", {method: "post"});
  const body = element("textarea", {
    id: `${id}-body`, rows: 3, spellcheck: false,
    value: media ? JSON.stringify(examples[0]?.[1].value ?? {}) : "",
  });
  const request = () => ({
    method, url: new URL(path, location.href).href, body: media ? body.value : null,
  });
  if (media) {
    const buttons = examples.map(([name, example]) => element("button", {
      type: "button",
      onclick: () => { body.value = JSON.stringify(example.value); body.dispatchEvent(new Event("input")); },
    }, name));
    const fill = buttons.length > 1 ? [element("div", {className: "row"}, element("small", {}, "Examples:"), buttons)] : [];
    form.append(element("label", {htmlFor: body.id}, "Body"), body, ...fill);
  }
  const result = element("div", {"aria-live": "polite"});
  const hint = media ? [element("small", {}, "or Ctrl+Enter")] : [];
  form.append(element("div", {className: "row"}, element("button", {}, "Send"), hint), result);
  form.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      result.replaceChildren(...await showResponse(await send(method, path, request().body)));
    } catch (error) {
      result.replaceChildren(element("p", {className: "problem"}, describeFailure(error)));
    }
  };
  const success = resolve(operation.responses["200"].content["application/json"].schema);
  return element("section", {className: "card", id, "aria-labelledby": `${id}-title`},
    element("h2", {id: `${id}-title`}, operation.summary),
    element("p", {className: "path"}, `${method} ${path}`),
    element("p", {}, prose(operation.description)),
    media ? [element("h3", {}, "Body"), showMembers(resolve(media.schema))] : [],
    element("h3", {}, "Response: 200"), showMembers(success),
    element("h3", {}, "Try it"), form,
    element("h3", {}, "In your program"), showCode(request, body));
}

function showMembers(schema) {
  const rows = Object.entries(schema.properties).map(([name, member]) => {
    const kinds = (member.anyOf ?? [member]).map((kind) => {
      const type = [kind.type ?? JSON.stringify(kind.const)].flat().join(" or ");
      return element("div", {}, `${type}. `, prose(kind.description ?? ""));
    });
    return [element("dt", {}, element("code", {}, name)), element("dd", {}, kinds)];
  });
  return element("dl", {}, rows.flat());
}

async function showResponse(response) {
  const text = await response.text();
  const fields = RESPONSE_FIELDS.filter((name) => response.headers.has(name));
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* of a proxy in between: as it is */ }
  return [
    element("p", {className: response.ok ? "good" : "problem"}, `${response.status} ${response.statusText}`),
    element("pre", {className: "response", tabIndex: 0}, shown),
    element("dl", {}, fields.flatMap((name) => [
      element("dt", {}, name), element("dd", {}, element("code", {}, response.headers.get(name))),
    ])),
  ];
}

function showCode(request, body) {
  let language = "curl";
  const code = element("pre", {className: "code", tabIndex: 0});
  const copied = element("span", {className: "muted", role: "status"});
  const buttons = Object.keys(LANGUAGES).map((name) => element("button", {
    type: "button", onclick: () => { language = name; show(); },
  }, name));
  const copy = element("button", {type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      copied.textContent = "Selected: press Ctrl-C";
    }
  }}, "Copy");
  function show() {
    code.textContent = LANGUAGES[language](request());
    copied.textContent = "";
    for (const button of buttons) button.setAttribute("aria-pressed", button.textContent === language);
  }
  body.addEventListener("input", show);
  show();
  return element("div", {}, element("div", {className: "row"}, buttons, copy, copied), code);
}

function showErrors(status, response) {
  const examples = Object.values(response.content["application/json"].examples);
  const causes = (response.headers["X-Error-Reason"]?.schema.oneOf ?? []).flatMap((cause) => [
    element("dt", {}, element("code", {}, cause.const)), element("dd", {}, cause.description),
  ]);
  const codes = examples.flatMap(({value}) => [" ", element("code", {}, value.code)]);
  return element("details", {className: "card", id: `error-${status}`},
    element("summary", {}, status, codes),
    element("p", {}, prose(response.description)),
    causes.length ? [element("h3", {}, "X-Error-Reason"), element("dl", {}, causes)] : [],
    element("h3", {}, "Body"), examples.map((example) => element("pre", {}, JSON.stringify(example.value))));
}

// Remove responses to requests with another key.
function clearResults() {
  byId("key-result").textContent = "";
  for (const result of document.querySelectorAll("form [aria-live]")) result.replaceChildren();
}

async function checkKey(event, path) {
  event.preventDefault();
  const result = byId("key-result");
  try {
    const response = await send("GET", path, null);
    const record = await response.json();
    result.className = response.ok ? "good" : "problem";
    result.textContent = response.ok
      ? `${record.id}: ${record.scopes.join(", ")}; ${record.expires ? `expires ${record.expires}` : "does not expire"}`
      : `${response.status}: ${record.message}`;
  } catch (error) {
    result.className = "problem";
    result.textContent = describeFailure(error);
  }
}

async function main() {
  const response = await fetch("openapi.json", {cache: "no-store"});
  if (!response.ok) throw new Error(`openapi.json: ${response.status}`);
  const api = await response.json();
  byId("version").textContent = api.info.version;
  byId("description").append(...prose(api.info.description));
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      byId("operations").append(showOperation(api, path, method.toUpperCase(), operation));
      if (operation.operationId === "describeKey") byId("key-form").onsubmit = (event) => checkKey(event, path);
    }
  }
  byId("key").oninput = clearResults;
  byId("errors").append(...Object.entries(api.components.responses).map((each) => showErrors(...each)));
}

main().catch((error) => { byId("problem").textContent = `The description of the API cannot be shown: ${error.message}`; });
