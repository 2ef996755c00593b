// Light or dark: as the system says, until the user chooses; the choice stays in this browser.
import { useEffect, useState } from "./html.mjs";

const CHOSEN = "loadmanager.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const present = () => localStorage.getItem(CHOSEN) ?? (system.matches ? "dark" : "light");

document.documentElement.dataset.theme = present();

/** [theme, turn]: "dark" or "light", and the function that changes to the other. */
export function useTheme() {
  const [theme, setTheme] = useState(present());
  useEffect(() => {
    const changed = () => setTheme(present());
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  document.documentElement.dataset.theme = theme;
  const turn = () => {
    localStorage.setItem(CHOSEN, theme === "dark" ? "light" : "dark");
    setTheme(present());
  };
  return [theme, turn];
}
