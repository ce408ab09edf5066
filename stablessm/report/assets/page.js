"use strict";
(() => {
  const all = (selector) => document.querySelectorAll(selector);

  document.querySelector("[data-theme-button]").addEventListener("click", theme.toggle);

  const filters = all("[data-filter]");
  filters.forEach((button) =>
    button.addEventListener("click", () => {
      const wanted = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.filter;
      filters.forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.filter === wanted)));
      all("[data-verdict]").forEach((row) => {
        row.hidden = wanted !== null && row.dataset.verdict !== wanted;
      });
    }),
  );

  all("[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code); // without a clipboard the reader copies the selection
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    }),
  );

  // Everything is unfolded on paper.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...all("details:not([open])")];
    opened.forEach((box) => (box.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((box) => (box.open = false)));
})();
