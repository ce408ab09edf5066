"use strict";
// Light or dark: the reader's choice, or the system's. Runs before the page is drawn, so that nothing flashes.
const theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  let chosen = null;
  try {
    chosen = localStorage.getItem("stablessm-theme");
  } catch {} // some browsers keep no storage for a file

  const current = () => (chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light");
  const apply = () => {
    root.dataset.theme = current();
    listeners.forEach((listener) => listener());
  };
  system.addEventListener("change", apply);
  apply();
  return {
    onchange: (listener) => listeners.push(listener),
    toggle() {
      chosen = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("stablessm-theme", chosen);
      } catch {}
      apply();
    },
  };
})();
