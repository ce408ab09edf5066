"use strict";
(() => {
  const all = (selector) => document.querySelectorAll(selector);

  // A drawing is stored once, in its section; thumbnails and downloads take its address from there.
  all("[data-src-of]").forEach((image) => {
    image.src = document.getElementById(image.dataset.srcOf).src;
    image.hidden = false;
  });
  all("[data-href-of]").forEach((link) => {
    link.href = document.getElementById(link.dataset.hrefOf).src;
  });

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
        getSelection().selectAllChildren(code); // no clipboard here: the reader's own keys copy it
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    }),
  );

  // Paper has nothing to unfold.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...all("details:not([open])")];
    opened.forEach((box) => (box.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((box) => (box.open = false)));
})();
