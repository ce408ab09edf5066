/* Buttons that show the claims of one verdict. Without JavaScript every claim is shown. */
"use strict";

(() => {
  const claims = [...document.querySelectorAll(".claim")];
  const place = document.querySelector(".claim-filter");
  if (!claims.length || !place) return;

  const show = (verdict) => {
    for (const claim of claims) claim.hidden = verdict !== "all" && claim.dataset.verdict !== verdict;
    for (const button of place.children) button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict));
  };

  const verdicts = ["all", ...new Set(claims.map((claim) => claim.dataset.verdict))];
  for (const verdict of verdicts) {
    const count = verdict === "all" ? claims.length : claims.filter((claim) => claim.dataset.verdict === verdict).length;
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.verdict = verdict;
    button.textContent = `${verdict} (${count})`;
    button.addEventListener("click", () => show(verdict));
    place.append(button);
  }
  show("all");
})();
