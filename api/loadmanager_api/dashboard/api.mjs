// Requests to this broker, with the bearer token if there is one. The token stays in this tab's session storage.

const TOKEN = "loadmanager.token";
const ANSWER_MS = 30_000;

/** The route that says who we are. */
export const ME = "/v1/me";

/** An answer that is not a success; `status` 0: no answer at all. */
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
let entered = null; // while the log-in has ended: {promise, resolve} of the next one

/** `listener` is called when the broker no longer knows who we are. Reads wait then until `resume`. */
export function onRefused(listener) {
  refused = listener;
}

/** Has the reads go on that wait for a log-in. */
export function resume() {
  entered?.resolve();
  entered = null;
}

/** The response of a request; throws Problem for any other status than success. */
export async function request(method, path, options = {}) {
  for (;;) {
    if (path !== ME) await entered?.promise;
    try {
      return await sent(method, path, options);
    } catch (error) {
      if (error.status !== 401 || path === ME) throw error;
      entered ??= Promise.withResolvers();
      refused(error.message);
      if (method !== "GET") throw new Problem(401, "The log-in had ended and nothing was changed. Do it again.");
    }
  }
}

async function sent(method, path, { body, headers: given = {}, signal }) {
  const headers = { ...given };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, credentials: "same-origin", redirect: "error", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "This broker does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail || `${response.status} ${response.statusText}`);
}

/** The JSON of an answer, null if it has no body. A read is given up after 30 s. */
export async function ask(method, path, { signal, ...options } = {}) {
  const ending = new AbortController(), end = () => ending.abort();
  signal?.addEventListener("abort", end);
  const timer = method === "GET" && setTimeout(end, ANSWER_MS);
  try {
    const text = await (await request(method, path, { ...options, signal: ending.signal })).text();
    return text ? JSON.parse(text) : null;
  } catch (error) {
    throw ending.signal.aborted && !signal?.aborted ? new Problem(0, `This broker does not answer within ${ANSWER_MS / 1000} s.`) : error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
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
