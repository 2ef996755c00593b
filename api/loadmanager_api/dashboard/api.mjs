// Requests to this broker, with the bearer token if there is one. The token stays in this tab's session storage.

const TOKEN = "loadmanager.token";

/** An answer that is no success; `status` 0: no answer at all. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let refused = () => {};

/** `listener` is called when the broker no longer knows who we are. */
export function onRefused(listener) {
  refused = listener;
}

/** The response of a request; throws Problem for any other status than success. */
export async function request(method, path, { body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (token.get()) sent.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers: sent, signal, credentials: "same-origin", redirect: "error", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "This broker does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) refused(problem.detail);
  throw new Problem(response.status, problem.detail || `${response.status} ${response.statusText}`);
}

/** The JSON of an answer, null if it has no body. */
export async function ask(method, path, options) {
  const text = await (await request(method, path, options)).text();
  return text ? JSON.parse(text) : null;
}

/** A path with a query; parameters without a value are left out. */
export function withQuery(path, params) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** A name within a path: slashes of a bundle's name stay. */
export function inPath(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}
