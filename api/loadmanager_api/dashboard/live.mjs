// Hooks for data that changes: polled routes, the watched bundles, the route of the page, the clock.
import { useCallback, useEffect, useMemo, useRef, useState } from "./html.mjs";
import { ask, withQuery } from "./api.mjs";

/** {data, at_ms, error, reload} of a GET: again when `again` changes, and every `every_s` seconds while the page is visible. */
export function usePoll(path, every_s = 0, again = 0) {
  const [answer, setAnswer] = useState({ path: null });
  const [wanted, setWanted] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const ending = new AbortController();
    let timer = 0;
    const load = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await ask("GET", path, { signal: ending.signal });
          setAnswer({ path, data, at_ms: Date.now() });
        } catch (error) {
          if (ending.signal.aborted) return;
          setAnswer((before) => ({ ...(before.path === path ? before : {}), path, error }));
        }
      }
      if (every_s && !ending.signal.aborted) timer = setTimeout(load, 1000 * every_s);
    };
    const shown = () => document.hidden || !every_s || load();
    load();
    document.addEventListener("visibilitychange", shown);
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [path, every_s, again, wanted]);
  const reload = useCallback(() => setWanted((before) => before + 1), []);
  return { ...(answer.path === path ? answer : {}), reload };
}

/** Draws again after changes of the bundles, at most once in `least_ms`; returns their version. */
export function useBundles(bundles, least_ms = 100) {
  const [version, setVersion] = useState(bundles.version);
  useEffect(() => {
    let timer = 0;
    const changed = () => {
      timer ||= setTimeout(() => {
        timer = 0;
        setVersion(bundles.version);
      }, least_ms);
    };
    changed();
    const end = bundles.listen(changed);
    return () => {
      end();
      clearTimeout(timer);
    };
  }, [bundles, least_ms]);
  return version;
}

const NO_LOADS = new Map(), LOADS_S = 15;

/** The rows of the hottest bundles by name, with their rates; of one namespace, or of all (null). */
export function useLoads(namespace) {
  const page = usePoll(namespace === "" ? null : withQuery("/v1/bundles", { order: "load", limit: 1000, namespace }), LOADS_S);
  return useMemo(() => (page.data ? new Map(page.data.bundles.map((row) => [row.bundle, row])) : NO_LOADS), [page.data]);
}

/** Draws again every `every_s` seconds; returns the time in ms. */
export function useNow(every_s) {
  const [now_ms, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000 * every_s);
    return () => clearInterval(timer);
  }, [every_s]);
  return now_ms;
}

/** {view, params} of the address after `#/`. */
export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const [view, query] = hash.replace(/^#\/?/, "").split("?");
  return { view: view || "overview", params: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a view. */
export function to(view, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value);
  return `#/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** The width of an element in CSS pixels, as it changes. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
