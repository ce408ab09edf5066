"use strict";
// Light or dark theme: the reader's choice, or else the system's. Runs before the page is drawn, so that no other theme flashes.
const theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("stablessm-theme");
  } catch {} // some browsers have no storage for local files

  const current = () => (chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light");
  const apply = () => (root.dataset.theme = current());
  system.addEventListener("change", apply);
  apply();
  return {
    toggle() {
      chosen = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("stablessm-theme", chosen);
      } catch {}
      apply();
    },
  };
})();
