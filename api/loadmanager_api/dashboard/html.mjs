// The view library under one name: preact with its hooks, and htm, which needs no build.
import { h } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export { render } from "./vendor/preact.mjs";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";

export const html = htm.bind(h);
