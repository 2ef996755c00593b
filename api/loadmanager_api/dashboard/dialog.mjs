// One dialog that asks before something is changed: what will happen, the fields it needs, and how it went.
import { html, useEffect, useRef, useState } from "./html.mjs";

let open = () => {};
let asked_so_far = 0;

/**
 * Ask: `title`, `text`, `fields` [{name, label, value?, options?, required?}], `verb`, `does(values)`.
 * The dialog stays with the error if `does` fails.
 */
export function confirm(question) {
  open(question);
}

export function Confirmation() {
  const [question, setQuestion] = useState(null);
  useEffect(() => {
    open = (asked) => setQuestion({ ...asked, key: ++asked_so_far });
  }, []);
  // The event of a dialog that closes may come after the next question was asked: each ends only itself.
  const close = () => setQuestion((present) => (present === question ? null : present));
  return question && html`<${Question} ...${question} close=${close} />`;
}

function Question({ title, text, fields = [], verb, hurts, does, close }) {
  const dialog = useRef(null);
  const [values, setValues] = useState(Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
  const [phase, setPhase] = useState({ running: false, error: "" });
  useEffect(() => {
    const element = dialog.current;
    element.showModal();
    return () => element.close();
  }, []);
  const act = async (event) => {
    event.preventDefault();
    if (phase.running) return;
    setPhase({ running: true, error: "" });
    try {
      await does(values);
      close();
    } catch (error) {
      setPhase({ running: false, error: error.message });
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-label=${title}><form onSubmit=${act}>
    <h2>${title}</h2><p>${text}</p>
    ${fields.map((field) => html`<${Field} ...${field} value=${values[field.name]}
      set=${(value) => setValues({ ...values, [field.name]: value })} />`)}
    ${phase.error && html`<p role="alert" class="error">${phase.error}</p>`}
    <footer><button type="button" onClick=${close}>Keep as it is</button>
      <button type="submit" class=${hurts ? "hurts" : "main"} aria-disabled=${phase.running ? "true" : "false"}>
        ${phase.running ? `${verb} …` : verb}</button></footer>
  </form></dialog>`;
}

function Field({ name, label, value, options, required, set }) {
  const given = { id: `field-${name}`, name, value, required, onInput: (event) => set(event.target.value) };
  return html`<label for=${given.id}>${label}${options
    ? html`<select ...${given}>${!required && html`<option value="">–</option>`}
        ${options.map(([of, text]) => html`<option value=${of} selected=${of === value}>${text ?? of}</option>`)}</select>`
    : html`<input ...${given} autocomplete="off" />`}</label>`;
}
