// The page: who am I, the log-in, the frame with its views, the one watch that all views share.
import { html, render, useEffect, useMemo, useRef, useState } from "./html.mjs";
import { ME, ask, onRefused, resume, token } from "./api.mjs";
import { Bundles } from "./bundles.mjs";
import { Confirmation } from "./dialog.mjs";
import { to, usePoll, useRoute } from "./live.mjs";
import { highest, may, visible } from "./may.mjs";
import { useTheme } from "./theme.mjs";
import { watch } from "./watch.mjs";
import { Api } from "./views/api.mjs";
import { Audit } from "./views/audit.mjs";
import { BundleView } from "./views/bundles.mjs";
import { Channel } from "./views/channel.mjs";
import { Decisions } from "./views/decisions.mjs";
import { Groups } from "./views/groups.mjs";
import { errorsOf } from "./views/health.mjs";
import { History } from "./views/history.mjs";
import { Namespaces } from "./views/namespaces.mjs";
import { Overview } from "./views/overview.mjs";
import { Plans } from "./views/plans.mjs";
import { Policies } from "./views/policies.mjs";

const VIEWS = {
  overview: ["Overview", Overview],
  bundles: ["Bundles", BundleView],
  namespaces: ["Namespaces", Namespaces],
  decisions: ["Decisions", Decisions],
  plans: ["Plans", Plans],
  policies: ["Policies", Policies],
  groups: ["Groups", Groups],
  channel: ["Channel", Channel],
  history: ["History", History],
  audit: ["Audit", Audit],
  api: ["API", Api],
};

const HEALTH_S = 3;

function App() {
  const [me, setMe] = useState(null);
  const [refusal, setRefusal] = useState(null);
  const enter = async () => {
    try {
      setMe(await ask("GET", ME));
      setRefusal(null);
      resume();
    } catch (error) {
      setRefusal({ detail: error.message, status: error.status, given: Boolean(token.get()) });
    }
  };
  const refuse = (detail) => setRefusal({ detail, status: 401, given: Boolean(token.get()) });
  const leave = () => {
    token.forget();
    setMe(null);
    refuse("");
  };
  useEffect(() => {
    onRefused(refuse);
    enter();
  }, []);
  return html`${me && html`<${Frame} key=${me.principal} me=${me} leave=${leave} />`}
    ${refusal && (me ? html`<${Again}><${LogIn} refusal=${refusal} enter=${enter} /><//>` : html`<main><${LogIn} refusal=${refusal} enter=${enter} /></main>`)}`;
}

/** Covers the page while the log-in has ended: what was typed there is kept. */
function Again({ children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const element = dialog.current;
    element.showModal();
    return () => element.close();
  }, []);
  return html`<dialog class="again" aria-label="Log in again" ref=${dialog} onCancel=${(event) => event.preventDefault()}>${children}</dialog>`;
}

function LogIn({ refusal, enter }) {
  const [given, setGiven] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []); // the attribute alone works only while a page is loaded
  const submit = (event) => {
    event.preventDefault();
    if (given.trim()) token.set(given.trim().replace(/^bearer /i, ""));
    enter();
  };
  const wrong = refusal.detail && (refusal.given || refusal.status !== 401);
  return html`<div class="login"><form onSubmit=${submit}>
    <h1>loadmanager</h1>
    <p>This broker asks who you are. Paste a bearer token: this tab keeps it until it is closed.</p>
    <label for="token">Token<input id="token" name="token" type="password" autocomplete="off" spellcheck=${false} autofocus ref=${field}
      aria-describedby="refusal" value=${given} onInput=${(event) => setGiven(event.target.value)} /></label>
    <p id="refusal" role="alert" class="error">${wrong ? refusal.detail : ""}</p>
    <footer><button type="submit" class="main">Log in</button></footer>
  </form></div>`;
}

function Frame({ me, leave }) {
  const { view, params } = useRoute();
  const [theme, turn] = useTheme();
  const bundles = useMemo(() => new Bundles(), []);
  const everywhere = may(me, "viewer");
  const [namespace, setNamespace] = useState(everywhere ? null : (visible(me).find((each) => !each.endsWith("*")) ?? ""));
  const [status, setStatus] = useState({ text: "connecting", live: false });
  useEffect(() => {
    if (namespace === "") return undefined;
    return watch(namespace, {
      event: (kind, data) => bundles.take(kind, data),
      reset: () => bundles.reset(),
      status: (text, live) => setStatus({ text, live, lost: !live }),
    });
  }, [namespace]);
  const brokers = usePoll(visible(me).length ? "/v1/brokers" : null, 30);
  const health = usePoll(everywhere ? "/v1/health" : null, HEALTH_S);
  const [title, View] = VIEWS[view] ?? VIEWS.overview;
  useEffect(() => {
    document.title = `${title} · ${me.cluster} · loadmanager`;
  }, [title]);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <h1>${me.cluster}</h1>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [text]]) => html`<a href=${to(name)} key=${name}
        aria-current=${VIEWS[name][1] === View ? "page" : undefined}>${text}</a>`)}</nav>
      <span class="who">
        <span class=${status.live ? "live" : "broken"} role="status" title=${`asked broker: ${me.broker}`}>${status.text}</span>
        ${!everywhere && html`<${Namespace} me=${me} namespace=${namespace} set=${setNamespace} />`}
        <span title=${me.roles.map((held) => `${held.role}: ${held.namespaces.join(", ")}`).join("\n")}>${me.authentication ? `${me.principal} (${highest(me)})` : "no log-in needed"}</span>
        <button type="button" onClick=${turn} aria-label=${`Use the ${theme === "dark" ? "light" : "dark"} theme`}>${theme === "dark" ? "☀" : "☾"}</button>
        ${me.how === "token" && html`<button type="button" onClick=${leave}>Log out</button>`}
      </span>
    </header>
    ${View !== Overview && html`<${Wrong} health=${health} />`}
    ${status.lost && html`<${Elsewhere} me=${me} brokers=${brokers.data ?? []} />`}
    <main id="main" tabindex="-1"><${View} me=${me} bundles=${bundles} namespace=${namespace} health=${health} params=${params} theme=${theme} /></main>
    <footer class="bottom">Every figure comes from this broker's API: the path stands at the right of each heading, <a href=${to("api")}>API</a> describes and tries all.</footer>
    <${Confirmation} />`;
}

/** The first error, on every view but the overview, which shows all. */
function Wrong({ health }) {
  const [first, ...more] = errorsOf(health);
  return first ? html`<p role="alert" class="elsewhere"><a href=${to("overview")}>${first.found}</a>${more.length > 0 && `and ${more.length} more`}</p>` : null;
}

/** Where to look while this broker does not answer. */
function Elsewhere({ me, brokers }) {
  const others = brokers.filter((broker) => broker.live && broker.admin_url && broker.broker !== me.broker);
  return html`<p role="alert" class="elsewhere">The stream of changes from ${me.broker} is broken; what is shown may be old. It is tried again.
    ${others.length > 0 && html` Dashboards of other brokers: ${others.slice(0, 5).map((broker) => html`<a key=${broker.broker}
      href=${`${broker.admin_url}/${location.hash}`}>${broker.broker}</a> `)}`}</p>`;
}

function Namespace({ me, namespace, set }) {
  const [typed, setTyped] = useState(namespace);
  const submit = (event) => {
    event.preventDefault();
    set(typed.trim());
  };
  return html`<form onSubmit=${submit}><label class="inline">Namespace <input list="namespaces" value=${typed}
      onInput=${(event) => setTyped(event.target.value)} /></label>
    <datalist id="namespaces">${visible(me).map((each) => html`<option value=${each} key=${each} />`)}</datalist></form>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

render(html`<${App} />`, document.body);
