// Follows `/v1/watch`: all bundles, then every change. Resumes where it was after a break.
import { Problem, request, withQuery } from "./api.mjs";

const FIRST_REST_MS = 500, LAST_REST_MS = 15_000;
/** A quiet watch sends its revision every 10 s. */
const SILENCE_MS = 25_000;

/** Calls `on.event(kind, data)`, `on.reset()` before a new snapshot, `on.status(text, live)`; returns a function that ends it. */
export function watch(namespace, on) {
  const ending = new AbortController();
  follow(namespace, on, ending.signal);
  return () => ending.abort();
}

async function follow(namespace, on, signal) {
  let since = null, rest = FIRST_REST_MS;
  while (!signal.aborted) {
    const silent = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
    };
    try {
      if (!since) on.reset();
      heard();
      const either = AbortSignal.any([signal, silent.signal]);
      const response = await request("GET", withQuery("/v1/watch", { namespace, since }), { signal: either });
      on.status("live", true);
      for await (const event of events(response.body)) {
        heard();
        if (event.id) since = event.id;
        if (event.kind) on.event(event.kind, event.data);
        if (event.kind === "end" && !event.data.resume) since = null;
        rest = FIRST_REST_MS;
      }
      on.status("the broker ended the stream", false);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && [400, 409, 410].includes(error.status)) since = null;
      on.status(lost(error, silent), false);
      if (error instanceof Problem && [403, 404].includes(error.status)) return;
    } finally {
      clearTimeout(timer);
    }
    await new Promise((done) => setTimeout(done, rest));
    rest = Math.min(2 * rest, LAST_REST_MS);
  }
}

function lost(error, silent) {
  if (silent.signal.aborted) return `no word for ${SILENCE_MS / 1000} s`;
  return error instanceof Problem ? error.message : "the stream broke";
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (begun + value).split("\n\n");
      begun = blocks.pop();
      for (const block of blocks) yield parsed(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const event = { id: null, kind: null, data: null };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.id = line.slice(4);
    else if (line.startsWith("event: ")) event.kind = line.slice(7);
    else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
  }
  return event;
}
